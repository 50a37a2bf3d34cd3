#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/reason.h"
#include "descriptors.h"
#include "user.h"

enum {
    EXIT_NOT_EXECUTABLE = 126,
    EXIT_NOT_FOUND = 127,
    REPORT_FD_MIN = 100, /* above the numbers that descriptors have in a child */
    BEGIN_MS = 3000,
};

static const char USUAL_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
static bool yields_memory; /* the OOM killer takes children before the guest */
static bool may_stray;

void spawn_prepare(void) {
    yields_memory = getpid() == 1;
    may_stray = prctl(PR_SET_CHILD_SUBREAPER, 0) == 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

bool spawn_may_stray(void) {
    return may_stray;
}

/* Raising the OOM score needs no privilege, and a child can lower its score only to the guest's. */
static bool yield_memory(const char *path) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, "500", 3) == 3;
    close(fd);
    return done;
}

void spawn_complain(int fd, const char *name, int error) {
    const char *reason = reason_of(error);
    struct iovec parts[] = {
        {.iov_base = (char *)"dutyfree: cannot run ", .iov_len = 21},
        {.iov_base = (char *)name, .iov_len = strnlen(name, PATH_MAX)},
        {.iov_base = (char *)": ", .iov_len = 2},
        {.iov_base = (char *)reason, .iov_len = strlen(reason)},
        {.iov_base = (char *)"\n", .iov_len = 1},
    };
    if (writev(fd, parts, sizeof parts / sizeof *parts) < 0) return; /* no reader is left */
}

/* Returns only if no file could be executed: the most informative errno. */
static int exec_found(const struct launch *launch) {
    const char *name = launch->argv[0];
    if (launch->path != NULL || strchr(name, '/') != NULL) {
        execve(launch->path != NULL ? launch->path : name, launch->argv, launch->envp);
        return errno;
    }
    int error = ENOENT;
    size_t name_bytes = strlen(name) + 1;
    const char *search = launch->search != NULL ? launch->search : USUAL_PATH;
    while (true) {
        size_t length = strcspn(search, ":");
        char candidate[PATH_MAX];
        if (length + 1 + name_bytes <= sizeof candidate) {
            memcpy(candidate, search, length);
            size_t slash = length > 0 ? 1 : 0; /* an empty entry is the working directory */
            if (slash) candidate[length] = '/';
            memcpy(candidate + length + slash, name, name_bytes);
            execve(candidate, launch->argv, launch->envp);
            if (errno != ENOENT && errno != ENOTDIR) error = errno;
            if (errno == E2BIG || errno == ENOEXEC || errno == ENOMEM || errno == ETXTBSY) return errno;
        }
        if (search[length] == '\0') return error;
        search += length + 1;
    }
}

/* What every child does first. It shares the guest's memory until exec: only the stack and descriptors are its own. */
static void settle_in(const struct launch *launch) {
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (launch->terminal) ioctl(launch->stdio[0], TIOCSCTTY, 0);
    for (int i = 0; i < 3; i++) {
        if (launch->stdio[i] >= 0) dup2(launch->stdio[i], i);
    }
    for (int i = 0; i < LAUNCH_EXTRAS; i++) {
        if (launch->extra[i].from >= 0) dup2(launch->extra[i].from, launch->extra[i].to);
    }
    descriptors_restore_limit();
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Programs open /dev/stdout and their terminal by name, which takes the rights of an owner. */
static void give_stdio(const struct launch *launch) {
    for (int i = 0; i < 3; i++) {
        if (launch->stdio[i] >= 0 && fchown(i, launch->account->uid, (gid_t)-1) != 0) continue; /* less works then */
    }
}

/* With the user's own rights: from its home, or from `/` if it has none that it can enter. 0 or an errno. */
static int enter_as_user(const struct launch *launch) {
    const char *cwd = launch->cwd;
    if (cwd == NULL || *cwd != '/') {
        bool home = launch->account->listed && chdir(launch->account->home) == 0;
        if (!home && chdir("/") != 0) return errno;
    }
    return cwd == NULL || chdir(cwd) == 0 ? 0 : errno;
}

static bool become_user(const struct launch *launch, struct failure *failure) {
    give_stdio(launch);
    failure->identity_error = user_become(launch->account);
    if (failure->identity_error == 0 && launch->applet == NULL) failure->cwd_error = enter_as_user(launch);
    return failure->identity_error == 0 && failure->cwd_error == 0;
}

static void run_program(const struct launch *launch) {
    int error = exec_found(launch);
    spawn_complain(STDERR_FILENO, launch->path != NULL ? launch->path : launch->argv[0], error);
    _exit(error == ENOENT || error == ENOTDIR ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE);
}

/* Says nothing on `report` and closes it, by exec or by itself, if all is well. */
static void begin_as_user(const struct launch *launch, int report) {
    struct failure failure = {0};
    settle_in(launch);
    if (yields_memory) yield_memory("/proc/self/oom_score_adj");
    if (launch->applet != NULL) {
        report = dup2(report, STDERR_FILENO + 1);
        close_from(report + 1); /* the stream, before another user's signals can reach this copy of the guest */
    }
    if (!become_user(launch, &failure)) _exit(write(report, &failure, sizeof failure) < 0 ? errno : EXIT_NOT_EXECUTABLE);
    if (launch->applet == NULL) run_program(launch);
    close(report);
    _exit(launch->applet(launch->argv));
}

/* Whether the child has begun, which it has once nothing can be said any more. */
static bool has_begun(int report, struct failure *failure) {
    struct pollfd ready = {.fd = report, .events = POLLIN};
    failure->stalled = poll(&ready, 1, BEGIN_MS) <= 0;
    return !failure->stalled && read(report, failure, sizeof *failure) != sizeof *failure;
}

/* A fork, because other processes of this user can stop the child before its exec: the guest waits for that with a
 * limit, as it could not for a vfork, and none of its memory is at stake. */
static pid_t spawn_as_user(const struct launch *launch) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    int report = fcntl(ends[1], F_DUPFD_CLOEXEC, REPORT_FD_MIN);
    close(ends[1]);
    pid_t pid = report < 0 ? -1 : fork();
    if (pid == 0) begin_as_user(launch, report);
    int error = errno;
    if (report >= 0) close(report);
    if (pid > 0 && !has_begun(ends[0], launch->failure)) {
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
        pid = -1;
    }
    close(ends[0]);
    errno = error;
    return pid;
}

static pid_t spawn_applet(const struct launch *launch) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    settle_in(launch);
    if (yields_memory) yield_memory("/proc/self/oom_score_adj");
    close_from(3); /* without an exec, nothing else closes the stream in this copy of the guest */
    _exit(launch->applet(launch->argv));
}

pid_t spawn(const struct launch *launch) {
    if (launch->account != NULL) return spawn_as_user(launch);
    if (launch->applet != NULL) return spawn_applet(launch);
    pid_t pid = vfork();
    if (pid == 0) {
        settle_in(launch);
        if (yields_memory) yield_memory("/proc/self/oom_score_adj");
        run_program(launch);
    }
    return pid;
}
