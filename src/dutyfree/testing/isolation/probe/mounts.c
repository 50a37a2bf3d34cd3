/* The shape of the file system: mounts, device nodes, control groups. */
#include "probe.h"

#include <ftw.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_fsopen 430
#endif

static void mount_probe(char **arguments)
{
    /* permission is checked before the file system's name is looked up */
    judge_permission(mount("none", arguments[0], "dutyfree-no-such-fs", 0, NULL));
}

static void bind_mount(char **arguments)
{
    int result = mount(arguments[0], arguments[0], NULL, MS_BIND, NULL);
    int error = errno;
    if (result == 0)
        umount2(arguments[0], MNT_DETACH);
    errno = error;
    judge(result);
}

static void umount_probe(char **arguments)
{
    judge_permission(umount2(arguments[0], 0)); /* not a mount point */
}

static void pivot_root_probe(char **arguments)
{
    judge_permission(syscall(SYS_pivot_root, arguments[0], arguments[0]));
}

static void fsopen_probe(char **arguments)
{
    (void)arguments;
    judge(syscall(SYS_fsopen, "tmpfs", 0));
}

static void open_tree_probe(char **arguments)
{
    (void)arguments;
    judge(syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */));
}

/* A node that can be made but not opened is harmless. */
static void use_new_node(char **arguments)
{
    mode_t kind = arguments[1][0] == 'b' ? S_IFBLK : S_IFCHR;
    dev_t device = makedev((unsigned)number(arguments[2]), (unsigned)number(arguments[3]));
    if (mknod(arguments[0], kind | 0600, device) < 0)
        denied(errno);
    int opened = open(arguments[0], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int error = errno;
    unlink(arguments[0]);
    if (opened < 0 && (error == EPERM || error == EACCES))
        denied(error);
    allowed(opened < 0 ? strerror(error) : NULL);
}

static bool is_harmless_device(const char *path, const struct stat *node)
{
    static const char *const names[] = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"};
    unsigned group = major(node->st_rdev);
    if (S_ISCHR(node->st_mode) && group >= 136 && group <= 143)
        return true; /* a pseudo-terminal, whatever its name */
    const char *last = strrchr(path, '/') + 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(last, names[i]) == 0)
            return S_ISCHR(node->st_mode) && (group == 1 || group == 5);
    return false;
}

static int refuse_device(const char *path, const struct stat *node, int kind, struct FTW *place)
{
    (void)kind;
    (void)place;
    if ((!S_ISCHR(node->st_mode) && !S_ISBLK(node->st_mode)) || is_harmless_device(path, node))
        return 0;
    /* O_PATH never touches the driver, so a tape does not rewind; access() says whether it could be opened */
    if (access(path, R_OK) == 0 || access(path, W_OK) == 0)
        allowed(path);
    return 0;
}

static void devices(char **arguments)
{
    (void)arguments;
    if (nftw("/dev", refuse_device, 16, FTW_PHYS) < 0)
        denied(errno);
    denied(ENOENT);
}

/* These settings belong to the sandbox's own namespaces and do not affect the host. */
static bool is_namespaced(const char *path)
{
    static const char *const own[] = {
        "/proc/sys/net/",           "/proc/sys/user/",           "/proc/sys/fs/mqueue/",
        "/proc/sys/kernel/msg",     "/proc/sys/kernel/shm",      "/proc/sys/kernel/sem",
        "/proc/sys/kernel/auto_ms", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
        "/proc/sys/kernel/ns_last", "/proc/sys/kernel/pid_max",
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(path, own[i], strlen(own[i])) == 0)
            return true;
    return false;
}

static int refuse_writable(const char *path, const struct stat *node, int kind, struct FTW *place)
{
    (void)kind;
    (void)place;
    if (!S_ISREG(node->st_mode) || is_namespaced(path))
        return 0;
    int opened = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (opened < 0)
        return 0;
    allowed(path);
}

static void writable_below(char **arguments)
{
    if (nftw(arguments[0], refuse_writable, 16, FTW_PHYS | FTW_MOUNT) < 0)
        denied(errno);
    denied(EACCES);
}

static int refuse_cgroup_control(const char *path, const struct stat *node, int kind, struct FTW *place)
{
    (void)node;
    (void)kind;
    const char *name = path + place->base;
    if (strcmp(name, "cgroup.procs") != 0 && strcmp(name, "release_agent") != 0 && strcmp(name, "tasks") != 0)
        return 0;
    if (open(path, O_WRONLY | O_CLOEXEC) >= 0)
        allowed(path);
    return 0;
}

static void cgroup_control(char **arguments)
{
    (void)arguments;
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[8192];
    if (!mounts)
        denied(errno);
    while (fgets(line, sizeof line, mounts)) {
        char place[4096];
        const char *source = strstr(line, " - cgroup");
        if (source && sscanf(line, "%*s %*s %*s %*s %4095s", place) == 1)
            nftw(place, refuse_cgroup_control, 16, FTW_PHYS | FTW_MOUNT);
    }
    denied(EACCES);
}

const struct probe mount_probes[] = {
    {"mount", 1, mount_probe},
    {"bind-mount", 1, bind_mount},
    {"umount", 1, umount_probe},
    {"pivot-root", 1, pivot_root_probe},
    {"fsopen", 0, fsopen_probe},
    {"open-tree", 0, open_tree_probe},
    {"use-new-node", 4, use_new_node},
    {"devices", 0, devices},
    {"writable-below", 1, writable_below},
    {"cgroup-control", 0, cgroup_control},
    {NULL, 0, NULL},
};
