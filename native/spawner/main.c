/* dutyfree-spawner --control FD --host PIDFD --guest PATH [--rootless 0|1]
 *
 * Serves one host process over a seqpacket socket. When that socket closes or that process dies (a child that it forked
 * may keep a copy of the socket), every cell is killed, everything that was made is given back, and the spawner exits. */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cell.h"
#include "spawner.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

enum { RETRY_MS = 1, IDLE_MS = 10, FAREWELL_MS = 5000 };
enum event { CONTROL_EVENT = 0, SIGNAL_EVENT = 1, HOST_EVENT = 2 };

static struct holdings own; /* what PREPARE made, given back at the very end */

static _Noreturn void die(const char *what) {
    dprintf(STDERR_FILENO, "dutyfree-spawner: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A private, sealed copy: a cell sees its guest as /proc/1/exe and must not change it. */
static int seal_guest(const char *path) {
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &info) < 0) die(path);
    int memory = memfd_create("dutyfree-guest", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (memory < 0 && errno == EINVAL) memory = memfd_create("dutyfree-guest", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0) die("memfd_create");
    for (off_t at = 0; at < info.st_size;)
        if (sendfile(memory, file, &at, (size_t)(info.st_size - at)) <= 0) die("copying the guest");
    if (fchmod(memory, 0555) < 0 ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        die("sealing the guest");
    close(file);
    return memory;
}

/* Mounts made after this are private to the spawner. Without the privileges for that (an ordinary user, or root in a
 * container), the spawner first becomes root of its own user namespace. */
static void leave_the_host(bool rootless) {
    uid_t uid = geteuid();
    gid_t gid = getegid();
    char map[64];
    if (unshare(rootless ? CLONE_NEWNS | CLONE_NEWUSER : CLONE_NEWNS) < 0) die("unshare");
    if (rootless) {
        snprintf(map, sizeof map, "0 %u 1\n", uid);
        if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", map)) die("uid_map");
        snprintf(map, sizeof map, "0 %u 1\n", gid);
        if (!write_file("/proc/self/gid_map", map)) die("gid_map");
    }
    if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) die("private mounts");
}

static void prepare(struct spawner *spawner, const uint8_t *fields, size_t length) {
    struct field_reader reader;
    struct field field;
    struct step step = {0};
    bool done = true;
    for (fields_read(&reader, fields, length); done && fields_next(&reader, &field);)
        done = field.tag < OP_MKDIR ? holdings_take(&own, &field, &step) : operation_do(&field, &step);
    if (done && reader.broken) done = step_failed(&step, 0, EPROTO, "malformed request");
    if (done) reply_number(spawner, REPLY_PREPARED, 0, TAG_STATUS, 0);
    else reply_failed(spawner, 0, &step);
}

/* A request about an existing cell: the cell's number and, for some requests, the number of a frozen space. */
static void request_for_cell(struct spawner *spawner, enum request kind, const uint8_t *fields, size_t length) {
    struct field_reader reader;
    struct field field;
    struct arguments a;
    struct step step;
    struct field group = {0};
    uint64_t cell = 0, frozen = 0;
    for (fields_read(&reader, fields, length); fields_next(&reader, &field);) {
        if (field.tag == OP_CELL && arguments_of(&field, 1, &a, &step)) cell = number_of(a.text[0]);
        else if (field.tag == OP_FROZEN && arguments_of(&field, 1, &a, &step)) frozen = number_of(a.text[0]);
        else if (field.tag == OP_CGROUP) group = field;
    }
    if (kind == REQUEST_KILL || kind == REQUEST_END) cell_kill(cell, kind == REQUEST_END);
    else if (kind == REQUEST_FREEZE) cell_freeze(spawner, cell, frozen);
    else if (kind == REQUEST_HOLD) cell_hold(spawner, cell, frozen, &group);
    else cell_drop(frozen);
}

/* One request; false when the host is gone. */
static bool serve(struct spawner *spawner) {
    static uint8_t message[MAX_MESSAGE];
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE((1 + MAX_TREES) * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = message, .iov_len = sizeof message};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(spawner->control, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    int given[sizeof control.space / sizeof(int)] = {-1}, count = 0; /* the stream, then trees of the host */
    struct cmsghdr *extra = CMSG_FIRSTHDR(&header);
    if (extra && extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS) {
        count = (int)((extra->cmsg_len - CMSG_LEN(0)) / sizeof *given);
        memcpy(given, CMSG_DATA(extra), (size_t)count * sizeof *given);
    }
    trees_note(given + 1, count > 0 ? count - 1 : 0);
    const uint8_t *fields = message + 1;
    size_t length = (size_t)got - 1;
    switch (message[0]) {
    case REQUEST_PREPARE: prepare(spawner, fields, length); break;
    case REQUEST_SPAWN: cell_spawn(spawner, fields, length, given[0]); break;
    case REQUEST_KILL:
    case REQUEST_END:
    case REQUEST_FREEZE:
    case REQUEST_DROP:
    case REQUEST_HOLD: request_for_cell(spawner, message[0], fields, length); break;
    }
    for (int i = 0; i < count; i++) close(given[i]);
    return true;
}

static void watch(int epoll, int fd, uint64_t data) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
}

static void run(struct spawner *spawner, int signals, int host) {
    struct epoll_event events[64];
    bool serving = true, again = false;
    for (int64_t deadline_ms = 0; serving || (cells_remain() && now_ms() < deadline_ms);) {
        int count = epoll_wait(spawner->epoll, events, 64, again ? RETRY_MS : serving ? -1 : IDLE_MS);
        for (int i = 0; i < count; i++) {
            uint64_t data = events[i].data.u64;
            if (data & STATUS_EVENT) cell_status_ready(spawner, (uint32_t)data);
            else if (serving && (data == CONTROL_EVENT || data == HOST_EVENT)) {
                serving = data == CONTROL_EVENT && serve(spawner);
                if (!serving) {
                    deadline_ms = now_ms() + FAREWELL_MS;
                    (void)epoll_ctl(spawner->epoll, EPOLL_CTL_DEL, spawner->control, NULL);
                    (void)epoll_ctl(spawner->epoll, EPOLL_CTL_DEL, host, NULL);
                    (void)shutdown(spawner->control, SHUT_RDWR); /* a reply must not block on a copy of the socket that no process reads */
                    cells_kill();
                }
            } else if (data == SIGNAL_EVENT) {
                struct signalfd_siginfo info;
                while (read(signals, &info, sizeof info) > 0) continue;
            }
        }
        again = cells_reap(spawner);
    }
}

int main(int argc, char **argv) {
    struct spawner spawner = {.control = -1};
    const char *guest = NULL;
    bool rootless = false;
    int host = -1;
    if (argc == 3 && !strcmp(argv[1], "--try")) return try_steps(argv[2]);
    if (argc == 2 && !strcmp(argv[1], "--survey")) survey();
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--control")) spawner.control = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--host")) host = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--guest")) guest = argv[i + 1];
        else if (!strcmp(argv[i], "--rootless")) rootless = !strcmp(argv[i + 1], "1");
    }
    if (spawner.control < 0 || host < 0 || !guest) {
        dprintf(STDERR_FILENO, "usage: dutyfree-spawner --control FD --host PIDFD --guest PATH [--rootless 0|1]\n");
        return 2;
    }
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    const int ignored[] = IGNORED_SIGNALS;
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) (void)signal(ignored[i], SIG_IGN);
    (void)setsid();
    umask(0); /* modes are as they were planned */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup3(null, IMAGE_FD, O_CLOEXEC) < 0 || dup3(null, IDS_FD, O_CLOEXEC) < 0)
        die("/dev/null"); /* so that no other file gets these descriptor numbers */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0) die("getrlimit");
    spawner.files = files;
    files.rlim_cur = files.rlim_max; /* one for each cell */
    (void)setrlimit(RLIMIT_NOFILE, &files);
    spawner.guest = seal_guest(guest);
    inheritance_note();
    if (!filters_build(&spawner.filters)) die("the filter of system calls");
    leave_the_host(rootless);
    if (!netlinks_start(&spawner.netlinks)) die("the keeper of netlink sockets");
    if (!networks_start(&spawner.networks)) die("the maker of networks");
    int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    spawner.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (signals < 0 || spawner.epoll < 0) die("event loop");
    (void)fcntl(spawner.control, F_SETFD, FD_CLOEXEC);
    (void)fcntl(host, F_SETFD, FD_CLOEXEC);
    watch(spawner.epoll, spawner.control, CONTROL_EVENT);
    watch(spawner.epoll, host, HOST_EVENT);
    watch(spawner.epoll, signals, SIGNAL_EVENT);
    run(&spawner, signals, host);
    networks_stop(&spawner.networks);
    netlinks_stop(&spawner.netlinks);
    for (int64_t deadline_ms = now_ms() + FAREWELL_MS; !holdings_drop_cgroups(&own) && now_ms() < deadline_ms;) {
        (void)cells_reap(&spawner); /* also reaps cells that died late */
        usleep(1000 * RETRY_MS);
    }
    return holdings_drop_scratch(&own) ? 0 : 1;
}
