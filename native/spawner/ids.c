/* Ranges of ids. Files on disk belong to one range, whichever cell wrote them; each cell's processes have another one, so
 * that the kernel, which counts many things for each user, counts them for each cell. Mounts that translate bring the two
 * together: each range has a user namespace that says how, made when it is first used, and kept. */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cell.h"
#include "spawner.h"

enum { KEPT = 4096 };

static struct {
    uint64_t outside;
    int namespace;
} kept[KEPT];

static bool write_maps(pid_t pid, const struct ids *ids) {
    /* The host's own ids stay what they are: a host's file that a cell changes keeps its owner. */
    char path[48], map[96];
    snprintf(map, sizeof map, "0 0 %llu\n%llu %llu %llu\n", (unsigned long long)ids->stored,
             (unsigned long long)ids->stored, (unsigned long long)ids->outside, (unsigned long long)ids->count);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, i == 0 ? "uid_map" : "gid_map");
        if (!write_file(path, map)) return false;
    }
    return true;
}

/* A namespace lives as long as a descriptor of it: the process that it begins with only waits. */
static int make_namespace(const struct ids *ids) {
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    char path[48];
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* (if we died before this call, the process stays: rare and harmless) */
        for (;;) pause();
    }
    if (pid < 0) return -1;
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    int namespace = write_maps(pid, ids) ? open(path, O_RDONLY | O_CLOEXEC) : -1, error = errno;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    errno = error;
    return namespace;
}

bool ids_differ(const struct ids *ids) { return ids->outside != ids->stored; }

int ids_namespace(const struct ids *ids) {
    size_t slot = (size_t)(ids->outside / ids->count) % KEPT;
    if (kept[slot].outside == ids->outside) return kept[slot].namespace;
    int namespace = make_namespace(ids);
    if (namespace < 0) return -1;
    if (kept[slot].outside) close(kept[slot].namespace);
    kept[slot].outside = ids->outside;
    kept[slot].namespace = namespace;
    return namespace;
}

int ids_translate(const char *path, int namespace) {
    struct mount_attr wanted = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (unsigned)namespace};
    int tree = clone_mount(path);
    if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) == 0) return tree;
    int error = errno;
    close(tree);
    errno = error;
    return -1;
}
