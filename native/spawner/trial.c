/* dutyfree-spawner --try root|user
 *
 * Tries what a cell needs one step at a time, each in a child of its own and without any help from the others, and
 * prints a line for each as it goes:
 *
 *   call NAME ERRNO         a system call with arguments that the kernel refuses before it looks at privileges: EPERM
 *                           can only be a filter's answer, ENOSYS that of a filter or of an old kernel
 *   step NAME ERRNO WHERE   0 for a step that works; otherwise the system call that failed
 *   step NAME skip STEP     not tried, because a step that it builds on has failed
 *
 * Everything happens in namespaces that end with the child: nothing is left. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "spawner.h"

enum {
    STEP_S = 5, /* a child that takes longer is killed */
    RANGE = 0x70000000,
    RANGE_COUNT = 65536, /* as in images/ownership.py */
    ACCOUNT = RANGE + RANGE_COUNT,
    INVALID_FLAGS = 0x7fffffff,
};

static bool as_root;
static const char *place; /* an existing directory that a child mounts over, in its own namespace */

struct result { /* in memory that the children share with us */
    int error;
    char where[24];
};
static struct result *result;

/* False, with what failed noted. */
static bool failed(const char *where) {
    result->error = errno ? errno : EIO;
    strncpy(result->where, where, sizeof result->where - 1);
    return false;
}

static bool check(bool done, const char *where) { return done || failed(where); }

static bool map_self(void) {
    char uids[32], gids[32];
    snprintf(uids, sizeof uids, "0 %u 1\n", geteuid());
    snprintf(gids, sizeof gids, "0 %u 1\n", getegid());
    return check(unshare(CLONE_NEWUSER) == 0, "unshare") &&
           check(write_file("/proc/self/setgroups", "deny"), "setgroups") &&
           check(write_file("/proc/self/uid_map", uids), "uid_map") &&
           check(write_file("/proc/self/gid_map", gids), "gid_map");
}

/* Only checks: as root, a filter that denies user namespaces denies all other namespaces, too. */
static bool try_user_namespace(void) {
    return as_root ? check(unshare(CLONE_NEWUSER) == 0, "unshare") : map_self();
}

static bool leave(void) {
    if (!as_root && !map_self()) return false;
    return check(unshare(CLONE_NEWNS) == 0, "unshare") &&
           check(mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "mount");
}

static bool try_tmpfs(void) {
    return leave() && check(mount("tmpfs", place, "tmpfs", 0, "size=1m,mode=755") == 0, "mount") &&
           check(chdir(place) == 0, "chdir");
}

static bool try_bind(void) {
    unsigned long flags = as_root ? MS_BIND : MS_BIND | MS_REC; /* what an ordinary user copies, it copies whole */
    return try_tmpfs() && check(mkdir("host", 0755) == 0, "mkdir") && check(mount("/", "host", NULL, flags, NULL) == 0, "mount");
}

static bool overlay_over(const char *lower) {
    char options[160];
    snprintf(options, sizeof options, "lowerdir=mask:%s,upperdir=upper,workdir=work,xino=off,%s", lower,
             as_root ? "index=off,redirect_dir=nofollow,volatile" : "userxattr");
    return check(mkdir("mask", 0755) == 0 && mkdir("upper", 0755) == 0 && mkdir("work", 0755) == 0 && mkdir("new", 0755) == 0, "mkdir") &&
           check(mount("overlay", "new", "overlay", MS_NODEV, options) == 0, "mount");
}

static bool try_overlay(void) {
    return try_tmpfs() && check(mkdir("lower", 0755) == 0, "mkdir") && overlay_over("lower");
}

static bool try_overlay_host(void) { return try_bind() && overlay_over(as_root ? "host" : "host/usr/bin"); }

static bool try_pivot(void) {
    return try_tmpfs() && check(syscall(SYS_pivot_root, ".", ".") == 0, "pivot_root") &&
           check(umount2(".", MNT_DETACH) == 0, "umount");
}

/* In a child with the namespaces that every cell is cloned into. */
static bool in_namespaces(bool (*attempt)(void)) {
    struct clone_args args = {.flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)attempt();
        _exit(0);
    }
    return check(pid > 0 && waitpid(pid, NULL, 0) == pid, "clone3") && result->error == 0;
}

static bool name_host(void) { return check(sethostname("trial", 5) == 0, "sethostname"); }
static bool mount_proc(void) {
    return check(mount("proc", ".", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "mount");
}
static bool try_namespaces(void) { return leave() && in_namespaces(name_host); }
static bool try_proc(void) { return try_tmpfs() && in_namespaces(mount_proc); }

static bool try_terminals(void) {
    char options[64];
    int length = snprintf(options, sizeof options, "newinstance,ptmxmode=0666,mode=0620");
    if (as_root) snprintf(options + length, sizeof options - (size_t)length, ",gid=%d", RANGE + 5);
    return try_tmpfs() && check(mkdir("pts", 0755) == 0, "mkdir") &&
           check(mount("devpts", "pts", "devpts", MS_NOSUID | MS_NOEXEC, options) == 0, "mount");
}

static bool try_devices(void) {
    if (!try_tmpfs()) return false;
    if (as_root) {
        if (!check(mknod("null", S_IFCHR | 0666, makedev(1, 3)) == 0, "mknod")) return false;
    } else {
        int file = open("null", O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
        if (!check(file >= 0, "open") || !check(mount("/dev/null", "null", NULL, MS_BIND, NULL) == 0, "mount")) return false;
    }
    return check(open("null", O_RDWR | O_CLOEXEC) >= 0, "open");
}

static bool try_masks(void) {
    return try_tmpfs() && check(setxattr(".", "trusted.overlay.opaque", "y", 1, 0) == 0, "setxattr") &&
           check(mknod("whiteout", S_IFCHR, 0) == 0, "mknod");
}

static bool try_network(void) { return leave() && check(unshare(CLONE_NEWNET) == 0, "unshare"); }
static bool try_loopback(void) { return try_network() && check(raise_loopback(), "ioctl"); }
static bool try_cgroup_namespace(void) { return leave() && check(unshare(CLONE_NEWCGROUP) == 0, "unshare"); }

static bool try_owners(void) {
    return try_tmpfs() && check(mkdir("owned", 0700) == 0, "mkdir") &&
           check(lchown("owned", RANGE, RANGE) == 0, "chown") && check(chmod("owned", 0755) == 0, "chmod") &&
           check(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0, "prctl") &&
           check(setresgid(ACCOUNT, ACCOUNT, ACCOUNT) == 0, "setresgid") &&
           check(setresuid(ACCOUNT, ACCOUNT, ACCOUNT) == 0, "setresuid");
}

/* In a child: a cell's own user namespace, unmapped yet. Says so on the socket and waits for its end. */
static _Noreturn void in_user_namespace(int line) {
    char word = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bool done = !as_root || (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0 &&
                             setresgid(ACCOUNT, ACCOUNT, ACCOUNT) == 0 && setresuid(ACCOUNT, ACCOUNT, ACCOUNT) == 0);
    if (check(done, "setresuid") && check(unshare(CLONE_NEWUSER) == 0, "unshare") && send(line, "u", 1, MSG_NOSIGNAL) == 1 &&
        recv(line, &word, 1, 0) == 1) {
        (void)setgroups(0, NULL);
        if (check(setresgid(0, 0, 0) == 0, "setresgid") && check(setresuid(0, 0, 0) == 0, "setresuid"))
            if (send(line, "i", 1, MSG_NOSIGNAL) == 1) (void)recv(line, &word, 1, 0);
    }
    _exit(0);
}

/* A child in a mapped user namespace, which lives until `line` is closed; 0 with the result noted. */
static pid_t mapped_child(int *line) {
    int pair[2];
    char word;
    if (!check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair")) return 0;
    pid_t pid = fork();
    if (pid == 0) {
        close(pair[0]);
        in_user_namespace(pair[1]);
    }
    close(pair[1]);
    *line = pair[0];
    if (!check(pid > 0, "fork")) return 0;
    if (recv(pair[0], &word, 1, 0) != 1) return 0; /* the child has noted why */
    if (!check(as_root ? map_ids(pid, RANGE, RANGE_COUNT) : map_ids(pid, 0, 1), "uid_map")) return 0;
    return send(pair[0], "m", 1, MSG_NOSIGNAL) == 1 && recv(pair[0], &word, 1, 0) == 1 ? pid : 0;
}

static bool try_ids(void) {
    int line;
    return leave() && mapped_child(&line) > 0;
}

/* From outside, as the host process does after each reset: what a cell has written, and its sockets. */
static bool try_look(void) {
    struct statfs space;
    char path[48];
    int line;
    pid_t pid = as_root ? mapped_child(&line) : getpid();
    if (pid <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/root", (int)pid);
    if (!check(statfs(path, &space) == 0, "statfs")) return false;
    snprintf(path, sizeof path, "/proc/%d/net/sockstat", (int)pid);
    return check(open(path, O_RDONLY | O_CLOEXEC) >= 0, "open");
}

/* Kills the cell from outside: its ids differ from ours, and no process in it helps. */
static bool try_kill(void) {
    int line;
    pid_t pid = mapped_child(&line);
    return pid > 0 && check(kill(pid, SIGKILL) == 0, "kill");
}

static bool try_id_mapped_mount(void) {
    char path[48];
    int line;
    pid_t pid = try_tmpfs() ? mapped_child(&line) : 0;
    if (pid <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    int users = open(path, O_RDONLY | O_CLOEXEC);
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, ".", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    struct mount_attr wanted = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (unsigned)users};
    return check(users >= 0, "open") && check(tree >= 0, "open_tree") &&
           check(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) == 0, "mount_setattr");
}

static bool try_filter(void) {
    struct filters filters;
    return check(filters_build(&filters), "filter") && check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "prctl") &&
           check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filters.without_netlink) == 0, "seccomp");
}

enum who { ANYONE, ROOT };
static struct trial {
    const char *name, *builds_on;
    enum who who;
    bool (*attempt)(void);
    bool works;
} trials[] = {
    {"user-namespace", NULL, ANYONE, try_user_namespace, false},
    {"mount-namespace", NULL, ANYONE, leave, false},
    {"tmpfs", "mount-namespace", ANYONE, try_tmpfs, false},
    {"bind", "tmpfs", ANYONE, try_bind, false},
    {"overlay", "tmpfs", ANYONE, try_overlay, false},
    {"overlay-host", "overlay", ANYONE, try_overlay_host, false},
    {"pivot-root", "tmpfs", ANYONE, try_pivot, false},
    {"namespaces", "mount-namespace", ANYONE, try_namespaces, false},
    {"proc", "namespaces", ANYONE, try_proc, false},
    {"terminals", "tmpfs", ANYONE, try_terminals, false},
    {"devices", "tmpfs", ANYONE, try_devices, false},
    {"masks", "tmpfs", ROOT, try_masks, false},
    {"network-namespace", "mount-namespace", ANYONE, try_network, false},
    {"loopback", "network-namespace", ANYONE, try_loopback, false},
    {"cgroup-namespace", "mount-namespace", ANYONE, try_cgroup_namespace, false},
    {"owners", "tmpfs", ROOT, try_owners, false},
    {"ids", "mount-namespace", ANYONE, try_ids, false},
    {"look", "ids", ROOT, try_look, false},
    {"kill", "ids", ROOT, try_kill, false},
    {"filter", NULL, ANYONE, try_filter, false},
    {"id-mapped-mount", "ids", ROOT, try_id_mapped_mount, false},
};

enum { TRIALS = sizeof trials / sizeof *trials };

static bool works(const char *name) {
    for (size_t i = 0; i < TRIALS; i++)
        if (!strcmp(trials[i].name, name)) return trials[i].works;
    return true;
}

static void run_trial(struct trial *trial) {
    if (trial->builds_on && !works(trial->builds_on)) {
        printf("step %s skip %s\n", trial->name, trial->builds_on);
        return;
    }
    *result = (struct result){0};
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(STEP_S);
        bool done = trial->attempt();
        _exit(done ? 0 : 1);
    }
    if (pid < 0) (void)failed("fork");
    else if (waitpid(pid, &status, 0) != pid) (void)failed("waitpid");
    else if (WIFSIGNALED(status)) {
        errno = WTERMSIG(status) == SIGALRM ? ETIMEDOUT : EINTR;
        (void)failed("killed");
    } else if (WEXITSTATUS(status) != 0 && result->error == 0) (void)failed("ended");
    trial->works = result->error == 0;
    printf("step %s %d %s\n", trial->name, result->error, trial->works ? "-" : result->where);
}

/* A call that is not filtered fails with EINVAL, EFAULT or EBADF for every user. */
static void try_call(const char *name, long answer) { printf("call %s %d\n", name, answer < 0 ? errno : 0); }

static void try_calls(void) {
    const char *nowhere = (const char *)1;
    try_call("unshare", syscall(SYS_unshare, CLONE_PTRACE));
    try_call("mount", syscall(SYS_mount, "", "/", nowhere, 0, NULL));
    try_call("umount2", syscall(SYS_umount2, "/", INVALID_FLAGS));
    try_call("setns", syscall(SYS_setns, -1, 0));
    try_call("clone3", syscall(SYS_clone3, NULL, 0));
    try_call("open_tree", syscall(SYS_open_tree, -1, "", INVALID_FLAGS));
    try_call("mount_setattr", syscall(SYS_mount_setattr, -1, "", INVALID_FLAGS, NULL, 0));
    try_call("openat2", syscall(SYS_openat2, -1, "", NULL, 0));
    try_call("close_range", syscall(SYS_close_range, 1, 0, 0));
    try_call("memfd_create", syscall(SYS_memfd_create, "", INVALID_FLAGS));
    try_call("pidfd_open", syscall(SYS_pidfd_open, -1, INVALID_FLAGS));
    try_call("execveat", syscall(SYS_execveat, -1, "", NULL, NULL, INVALID_FLAGS));
    try_call("seccomp", syscall(SYS_seccomp, INVALID_FLAGS, 0, NULL));
}

int try_steps(const char *mode) {
    static const char *const places[] = {"/tmp", "/run", "/var", "/usr"};
    struct stat info;
    as_root = !strcmp(mode, "root");
    for (size_t i = 0; !place && i < sizeof places / sizeof *places; i++)
        if (lstat(places[i], &info) == 0 && S_ISDIR(info.st_mode)) place = places[i];
    result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (result == MAP_FAILED || !place) return 1;
    setvbuf(stdout, NULL, _IONBF, 0); /* as it goes, and nothing is printed twice by a child */
    umask(0);
    try_calls();
    for (size_t i = 0; i < TRIALS; i++)
        if (trials[i].who == ANYONE || as_root) run_trial(&trials[i]);
    return 0;
}
