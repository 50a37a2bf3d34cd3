/* The creation of a cell: reads the request, and carries it out in the cell's first process. */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cell.h"
#include "spawner.h"

bool birth_read(const struct spawner *spawner, const uint8_t *fields, size_t length, struct birth *birth,
                         struct cell *cell, struct step *step) {
    struct field_reader reader;
    struct field field;
    struct arguments a;
    *birth = (struct birth){.into = -1, .image = -1, .network = -1, .namespace = -1};
    for (fields_read(&reader, fields, length); fields_next(&reader, &field);) {
        if (field.tag >= OP_MKDIR && field.tag < OP_USER) continue; /* for the cell itself */
        switch (field.tag) {
        case OP_CELL:
            if (!arguments_of(&field, 1, &a, step)) return false;
            cell->number = number_of(a.text[0]);
            break;
        case OP_UNSHARE:
            if (!arguments_of(&field, 1, &a, step)) return false;
            birth->flags = number_of(a.text[0]);
            break;
        case OP_JOIN:
            if (!arguments_of(&field, 1, &a, step)) return false;
            if (birth->join_count == MAX_CGROUPS) return step_failed(step, field.tag, E2BIG, a.text[0]);
            int tasks = open(a.text[0], O_WRONLY | O_CLOEXEC);
            if (tasks < 0) return step_failed(step, field.tag, errno, a.text[0]);
            birth->joins[birth->join_count++] = tasks;
            break;
        case OP_INTO:
            if (!arguments_of(&field, 1, &a, step)) return false;
            if (birth->into >= 0) close(birth->into);
            birth->into = open(a.text[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
            if (birth->into < 0) return step_failed(step, field.tag, errno, a.text[0]);
            break;
        case OP_IMAGE:
            if (!arguments_of(&field, 2, &a, step)) return false;
            if (birth->image >= 0) close(birth->image);
            birth->image = image_open(a.text[0], a.text[1]);
            cell->image = true;
            if (birth->image < 0) return step_failed(step, field.tag, errno, a.text[1]);
            break;
        case OP_NETWORK:
            birth->network = networks_take(&spawner->networks);
            if (birth->network < 0) return step_failed(step, field.tag, errno, "namespace");
            break;
        case OP_USER:
            if (!arguments_of(&field, 4, &a, step)) return false;
            cell->ids = (struct ids){number_of(a.text[0]), number_of(a.text[1]), number_of(a.text[3])};
            birth->user = field;
            if (!ids_differ(&cell->ids)) break;
            birth->namespace = ids_namespace(&cell->ids);
            if (birth->namespace < 0) return step_failed(step, field.tag, errno, "ids");
            break;
        case OP_CAPS: birth->caps = field; break;
        case OP_EXEC: birth->exec = field; break;
        default:
            if (!holdings_take(&cell->holdings, &field, step)) return false;
        }
    }
    if (reader.broken) return step_failed(step, 0, EPROTO, "malformed request");
    return true;
}

void birth_close(const struct birth *birth) {
    for (int i = 0; i < birth->join_count; i++) close(birth->joins[i]);
    if (birth->into >= 0) close(birth->into);
    if (birth->image >= 0) close(birth->image);
    if (birth->network >= 0) close(birth->network);
}

int clone_mount(const char *path) {
    return (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

static int keep_space(const struct field *field, struct step *step) {
    struct arguments a;
    if (!arguments_of(field, 1, &a, step)) return -1;
    int kept = clone_mount(a.text[0]);
    if (kept < 0) step_failed(step, OP_KEEP, errno, a.text[0]);
    return kept;
}

void birth_go(const struct spawner *spawner, const struct birth *birth, uint64_t root, const uint8_t *fields,
                        size_t length, int stream, int status, struct step *step) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    inheritance_leave();
    /* Writing "0" moves the writer without the kernel's global migration lock, which costs milliseconds. */
    for (int i = 0; i < birth->join_count; i++)
        if (write(birth->joins[i], "0", 1) != 1) {
            step_failed(step, OP_JOIN, errno, "tasks");
            return;
        }
    if (birth->network >= 0 && setns(birth->network, CLONE_NEWNET) < 0) {
        step_failed(step, OP_NETWORK, errno, "namespace");
        return;
    }
    if (birth->image >= 0 && dup3(birth->image, IMAGE_FD, O_CLOEXEC) < 0) {
        step_failed(step, OP_IMAGE, errno, "descriptor");
        return;
    }
    if (birth->namespace >= 0 && dup3(birth->namespace, IDS_FD, O_CLOEXEC) < 0) {
        step_failed(step, OP_USER, errno, "descriptor");
        return;
    }
    /* A hostile image must not reach files of other cells or of the spawner. */
    int needed[6 + MAX_TREES] = {stream, status, spawner->guest, IMAGE_FD, IDS_FD, spawner->netlinks.listeners};
    const int *trees;
    int tree_count = trees_given(&trees);
    memcpy(needed + 6, trees, (size_t)tree_count * sizeof *needed);
    close_all_but(needed, (size_t)(6 + tree_count));
    struct field_reader reader;
    struct field field;
    int kept = -1;
    operations_belong_to(root, birth->namespace >= 0);
    for (fields_read(&reader, fields, length); fields_next(&reader, &field);) {
        if (field.tag < OP_MKDIR || field.tag >= OP_USER) continue;
        if (field.tag == OP_KEEP) kept = keep_space(&field, step);
        if (field.tag == OP_KEEP ? kept < 0 : !operation_do(&field, step)) return;
    }
    struct lockdown lockdown = {.user = birth->user.data ? &birth->user : NULL,
                                .caps = &birth->caps,
                                .exec = &birth->exec,
                                .status = status,
                                .kept = kept,
                                .files = &spawner->files,
                                .guest = spawner->guest,
                                .stream = stream,
                                .filters = &spawner->filters,
                                .listeners = spawner->netlinks.listeners};
    lockdown_and_exec(&lockdown, step);
}

pid_t birth_clone(const struct birth *birth) {
    struct clone_args args = {.flags = birth->flags, .exit_signal = SIGCHLD};
    if (birth->into >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)birth->into;
    }
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}
