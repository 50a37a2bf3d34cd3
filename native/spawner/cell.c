/* The life of a cell: maps its ids, freezes it, reaps it, and frees everything that it held. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mount.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cell.h"
#include "spawner.h"

enum {
    LIGHT_BYTES = 1 << 20, /* a writable space up to this size is freed without a child process */
    PATIENCE_MS = 5,       /* the clean-up of dead cells waits this long for cells that are being created */
};

/* Slots are reused; the table only grows. Slot numbers go to epoll, so they stay valid while a cell lives. */
static struct cell *cells;
static uint32_t slots;
static int births; /* cells that are not up yet */

static struct cell *free_slot(void) {
    for (uint32_t i = 0; i < slots; i++)
        if (!cells[i].used) return &cells[i];
    if (slots == MAX_CELLS) return NULL;
    uint32_t first = slots, grown = slots ? slots * 2 : 64;
    struct cell *table = realloc(cells, grown * sizeof *table);
    if (!table) return NULL;
    memset(table + slots, 0, (grown - slots) * sizeof *table);
    cells = table;
    slots = grown;
    return &cells[first];
}

static bool start(struct spawner *spawner, struct cell *cell, const struct birth *birth, const uint8_t *fields,
                  size_t length, int stream, struct step *step) {
    int pair[2];
    if (!birth->exec.data || !birth->caps.data) return step_failed(step, OP_EXEC, EPROTO, "incomplete request");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return step_failed(step, OP_EXEC, errno, "socketpair");
    pid_t pid = birth_clone(birth);
    if (pid == 0) {
        close(pair[0]);
        birth_go(spawner, birth, cell->ids.outside, fields, length, stream, pair[1], step);
        (void)send(pair[1], step, sizeof *step, MSG_NOSIGNAL);
        _exit(127);
    }
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return step_failed(step, OP_UNSHARE, errno, "clone");
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = STATUS_EVENT | (uint64_t)(cell - cells)};
    cell->status = pair[0];
    births++;
    cell->pid = pid;
    if (epoll_ctl(spawner->epoll, EPOLL_CTL_ADD, pair[0], &event) == 0) return true;
    kill(pid, SIGKILL);
    return step_failed(step, OP_EXEC, errno, "epoll_ctl");
}

/* The host puts the cell's number first. */
static uint64_t leading_number(const uint8_t *fields, size_t length) {
    struct field_reader reader;
    struct field field;
    struct arguments a;
    struct step ignored;
    fields_read(&reader, fields, length);
    return fields_next(&reader, &field) && arguments_of(&field, 1, &a, &ignored) ? number_of(a.text[0]) : 0;
}

void cell_spawn(struct spawner *spawner, const uint8_t *fields, size_t length, int stream) {
    struct birth birth;
    struct step step = {0};
    struct cell *cell = free_slot();
    if (!cell) {
        uint64_t number = leading_number(fields, length);
        step_failed(&step, OP_CELL, EAGAIN, "too many cells");
        reply_failed(spawner, number, &step);
        reply_number(spawner, REPLY_EXITED, number, TAG_STATUS, 0);
        return;
    }
    *cell = (struct cell){.used = true, .status = -1, .kept = -1, .root = -1};
    bool done = birth_read(spawner, fields, length, &birth, cell, &step) &&
                start(spawner, cell, &birth, fields, length, stream, &step);
    birth_close(&birth);
    if (done) reply_number(spawner, REPLY_SPAWNED, cell->number, TAG_PID, (uint64_t)cell->pid);
    else reply_failed(spawner, cell->number, &step); /* the next cells_reap frees what it holds */
}

/* Out of the event loop first: a cell that is being built holds a copy, which would keep the event alive. */
static void close_status(const struct spawner *spawner, struct cell *cell) {
    (void)epoll_ctl(spawner->epoll, EPOLL_CTL_DEL, cell->status, NULL);
    close(cell->status);
    cell->status = -1;
    births--;
}

/* Receives what a cell that is being built says, and the descriptor that may come with it. */
static ssize_t receive(struct cell *cell, struct step *step) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = step, .iov_len = sizeof *step};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(cell->status, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *extra = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (extra && extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS) {
        if (cell->kept >= 0) close(cell->kept);
        memcpy(&cell->kept, CMSG_DATA(extra), sizeof cell->kept);
    }
    return got;
}

void cell_status_ready(struct spawner *spawner, uint32_t slot) {
    struct cell *cell = &cells[slot];
    struct step step;
    if (cell->status < 0) return; /* an event that was already on its way */
    ssize_t got = receive(cell, &step);
    if (got < 0 && errno == EAGAIN) return;
    if (got == 1) { /* the cell has entered its user namespace and needs its id maps */
        char answer = map_ids(cell->pid, cell->ids.outside, cell->ids.count) ? 'y' : (char)errno;
        (void)send(cell->status, &answer, 1, MSG_NOSIGNAL);
        return;
    }
    if (got == (ssize_t)sizeof step) {
        step.detail[sizeof step.detail - 1] = 0;
        reply_failed(spawner, cell->number, &step);
    }
    close_status(spawner, cell); /* end of file: the guest is running */
}

static struct cell *slot_of(uint64_t number, bool frozen) {
    for (uint32_t i = 0; i < slots; i++)
        if (cells[i].used && !cells[i].removing && cells[i].frozen == frozen && cells[i].number == number) return &cells[i];
    return NULL;
}

static bool freeze(struct cell *cell, const struct cell *space, struct step *step) {
    char path[sizeof FROZEN + 24];
    snprintf(path, sizeof path, FROZEN "/%llu", (unsigned long long)space->number);
    if (cell->kept < 0) return step_failed(step, OP_FROZEN, EMFILE, "nothing was kept of the cell");
    if (mkdir(path, 0755) < 0) return step_failed(step, OP_FROZEN, errno, path);
    if (syscall(SYS_move_mount, cell->kept, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0) {
        int error = errno;
        rmdir(path);
        return step_failed(step, OP_FROZEN, error, path);
    }
    close(cell->kept);
    cell->kept = clone_mount(path);
    if (cell->root < 0) { /* kept open, so that the cell's death, for which a snapshot waits, does not wait for the removal of its root */
        snprintf(path, sizeof path, "/proc/%d/root", (int)cell->pid);
        cell->root = open(path, O_PATH | O_CLOEXEC);
    }
    return true;
}

void cell_freeze(struct spawner *spawner, uint64_t number, uint64_t frozen) {
    struct step step = {0};
    struct cell *space = free_slot(), *cell = slot_of(number, false); /* in this order: the table may have moved */
    bool done = false;
    if (!space || !cell) step_failed(&step, OP_FROZEN, space ? ESRCH : EAGAIN, "the cell");
    else {
        *space = (struct cell){.used = true, .frozen = true, .number = frozen, .origin = number,
                               .status = -1, .kept = -1, .root = -1};
        done = freeze(cell, space, &step);
        space->used = done;
    }
    if (done) reply_number(spawner, REPLY_FROZEN, frozen, TAG_STATUS, 0);
    else reply_failed(spawner, frozen, &step);
}

static void let_go_of_frozen(const struct cell *space) {
    char path[sizeof FROZEN + 24];
    snprintf(path, sizeof path, FROZEN "/%llu", (unsigned long long)space->number);
    (void)umount2(path, MNT_DETACH);
    (void)rmdir(path);
    (void)holdings_drop_scratch(&space->holdings);
}

/* In a child, because the last process that closes a file system frees its files, which takes time. */
static void drop(struct cell *space) {
    space->frozen = false;
    space->removing = true;
    space->pid = fork();
    if (space->pid > 0) return;
    if (space->pid == 0) close_all_but(NULL, 0);
    let_go_of_frozen(space);
    if (space->pid == 0) _exit(0);
    space->pid = 0;
}

void cell_drop(uint64_t frozen) {
    struct cell *space = slot_of(frozen, true);
    if (space) drop(space);
}

void cell_hold(struct spawner *spawner, uint64_t number, uint64_t answer, const struct field *group) {
    struct step step = {0};
    struct cell *cell = slot_of(number, false);
    bool done = cell && group->data ? holdings_take(&cell->holdings, group, &step)
                                    : step_failed(&step, OP_CGROUP, ESRCH, "the cell");
    if (done) cell->pausable = true;
    if (done) reply_number(spawner, REPLY_FROZEN, answer, TAG_STATUS, 0);
    else reply_failed(spawner, answer, &step);
}

static void kill_and_thaw(const struct cell *cell) {
    char path[4096];
    kill(cell->pid, SIGKILL);
    for (int i = 0; cell->pausable && i < cell->holdings.cgroup_count; i++) {
        snprintf(path, sizeof path, "%s/freezer.state", cell->holdings.cgroups[i]);
        (void)write_file(path, "THAWED"); /* only the freezer's group has the file */
    }
}

void cell_kill(uint64_t number, bool ending) {
    struct cell *cell = slot_of(number, false);
    if (!cell || cell->pid <= 0) return;
    cell->ending = ending;
    kill_and_thaw(cell);
}

void cells_kill(void) {
    for (uint32_t i = 0; i < slots; i++) {
        if (cells[i].used && cells[i].pid > 0 && !cells[i].removing) kill_and_thaw(&cells[i]);
        if (cells[i].used && cells[i].frozen) drop(&cells[i]);
    }
}

bool cells_remain(void) {
    for (uint32_t i = 0; i < slots; i++)
        if (cells[i].used) return true;
    return false;
}

static void process_ended(struct spawner *spawner, pid_t pid, int status) {
    for (uint32_t i = 0; i < slots; i++) {
        struct cell *cell = &cells[i];
        if (!cell->used || cell->pid != pid) continue;
        cell->pid = 0;
        if (cell->removing) continue;
        cell->exit_status = status;
        cell->ended_ms = now_ms();
        if (cell->ending) continue; /* each reply wakes the host, and it waits for the next one */
        reply_number(spawner, REPLY_DIED, cell->number, TAG_STATUS, (uint64_t)(unsigned)status);
    }
}

/* Whether freeing the cell's writable space takes long. */
static bool is_heavy(const struct cell *cell) {
    struct statfs space;
    if (cell->holdings.scratch_count || cell->root >= 0 || (cell->kept >= 0 && cell->image)) return true;
    if (cell->kept < 0 || fstatfs(cell->kept, &space) < 0 || space.f_type != TMPFS_MAGIC) return false;
    return (space.f_blocks - space.f_bfree) * (uint64_t)space.f_bsize > LIGHT_BYTES;
}

/* A child that keeps the writable space open longer than this process, so that the child frees it. */
static pid_t remover(const struct cell *cell) {
    int gate[2];
    char none;
    if (pipe2(gate, O_CLOEXEC) < 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        int kept[] = {gate[0], cell->kept, cell->root};
        close_all_but(kept, sizeof kept / sizeof *kept);
        (void)!read(gate[0], &none, 1); /* ends when our parent has closed its side, after the space */
        if (cell->root >= 0) close(cell->root);
        if (cell->kept >= 0) close(cell->kept);
        _exit(holdings_drop_scratch(&cell->holdings) ? 0 : 1);
    }
    if (cell->root >= 0) close(cell->root);
    if (cell->kept >= 0) close(cell->kept);
    close(gate[0]);
    close(gate[1]);
    return pid;
}

/* Files that a cell wrote on disk stay if they have become a layer. */
static void bequeath(struct cell *cell) {
    for (uint32_t i = 0; i < slots && cell->holdings.scratch_count; i++) {
        struct cell *heir = &cells[i];
        if (!heir->used || !heir->frozen || heir->origin != cell->number || heir->holdings.scratch_count) continue;
        memcpy(heir->holdings.scratch, cell->holdings.scratch, sizeof cell->holdings.scratch);
        heir->holdings.scratch_count = cell->holdings.scratch_count;
        cell->holdings.scratch_count = 0;
    }
}

/* True when nothing is held any more. */
static bool give_back(struct spawner *spawner, uint32_t slot) {
    struct cell *cell = &cells[slot];
    if (cell->status >= 0) cell_status_ready(spawner, slot); /* read its last message before reporting its end */
    if (cell->status >= 0) close_status(spawner, cell);
    if (!holdings_drop_cgroups(&cell->holdings)) return false;
    if (!cell->removing) bequeath(cell);
    if (!cell->removing && is_heavy(cell)) {
        cell->removing = true;
        cell->pid = remover(cell);
        cell->kept = cell->root = -1;
        if (cell->pid > 0) return false;
        cell->pid = 0;
        (void)holdings_drop_scratch(&cell->holdings);
    }
    if (cell->root >= 0) close(cell->root);
    if (cell->kept >= 0) close(cell->kept);
    cell->kept = cell->root = -1;
    return true;
}

bool cells_reap(struct spawner *spawner) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) process_ended(spawner, pid, status);
    bool again = false;
    for (uint32_t i = 0; i < slots; i++) {
        struct cell *cell = &cells[i];
        if (!cell->used || cell->frozen || cell->pid > 0) continue;
        bool waits = births > 0 || cell->root >= 0; /* a cell whose space was frozen has a successor that is created next */
        if (waits && cell->status < 0 && now_ms() - cell->ended_ms < PATIENCE_MS) {
            again = true;
            continue;
        }
        if (!give_back(spawner, i)) {
            again |= cell->pid <= 0;
            continue;
        }
        holdings_free(&cell->holdings);
        reply_number(spawner, REPLY_EXITED, cell->number, TAG_STATUS, (uint64_t)(unsigned)cell->exit_status);
        cell->used = false;
    }
    return again;
}
