/* dutyfree-guest: the one process that the host talks to in a sandbox. See docs/reference/wire-protocol.md. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "action.h"
#include "descriptors.h"
#include "loop.h"
#include "machine.h"
#include "spawn.h"
#include "stream.h"
#include "tree.h"

enum { EXIT_USAGE = 2, EXIT_START = 3 };

static struct watch child_watch = WATCH_CLOSED;

static int give_up(int code, const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return code;
    return code;
}

static void children_changed(struct watch *watch, uint32_t events) {
    (void)events;
    struct signalfd_siginfo unused;
    if (read(watch->fd, &unused, sizeof unused) > 0) actions_reap(); /* one pending SIGCHLD may stand for several children */
}

/* Signals are blocked, not ignored, so that a child needs only one call to get the default state. */
static bool take_signals(void) {
    sigset_t all;
    sigset_t children;
    sigfillset(&all);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    /* Signals that some parents ignore, which exec keeps; exec resets all handlers. */
    const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2, SIGXFSZ, SIGTSTP, SIGTTIN,
                           SIGTTOU};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_DFL);
    if (sigprocmask(SIG_SETMASK, &all, NULL) != 0) return false;
    child_watch.fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    child_watch.ready = children_changed;
    return child_watch.fd >= 0 && watch_arm(&child_watch, EPOLLIN);
}

/* Move a descriptor out of the way of 0, 1 and 2, and keep it from children. */
static int keep(int fd) {
    return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static bool silence_standard_descriptors(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) return false;
    bool done = dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0;
    if (fcntl(STDERR_FILENO, F_GETFD) < 0) done = done && dup2(null, STDERR_FILENO) >= 0;
    if (null > STDERR_FILENO) close(null);
    return done;
}

static void close_others(int first, int second) {
    int low = first < second ? first : second;
    int high = first < second ? second : first;
    close_between(STDERR_FILENO + 1, low - 1);
    close_between(low + 1, high - 1);
    close_from(high + 1);
}

static bool parse_descriptor(const char *text, int *fd) {
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno != 0 || *text == '\0' || *end != '\0' || number < 0 || number > INT16_MAX) return false;
    *fd = (int)number;
    return true;
}

static void end_everything(void) {
    if (getpid() == 1) {
        kill(-1, SIGKILL);
    } else {
        tree_kill_own();
    }
}

int main(int argc, char **argv) {
    int in = -1;
    int out = -1;
    /* With --leave the guest serves one action of several: it must not end the action's background processes. */
    bool leaves = argc > 2 && strcmp(argv[argc - 1], "--leave") == 0;
    if (leaves) argc--;
    bool owns = argc > 4 && strcmp(argv[argc - 3], "--machine") == 0;
    if (owns) argc -= 3;
    if (argc == 2 && strcmp(argv[1], "--stdio") == 0) {
        in = keep(STDIN_FILENO);
        out = keep(STDOUT_FILENO);
    } else if (argc == 3 && strcmp(argv[1], "--fd") == 0 && parse_descriptor(argv[2], &in)) {
        in = out = keep(in);
    } else {
        return give_up(EXIT_USAGE, "usage: dutyfree-guest (--fd N | --stdio) [--machine PORT CONTROL] [--leave]\n");
    }
    if (in < 0 || out < 0) return give_up(EXIT_USAGE, "dutyfree-guest: no such descriptor\n");
    close_others(in, out);
    if (!silence_standard_descriptors()) return give_up(EXIT_START, "dutyfree-guest: cannot open /dev/null\n");
    spawn_prepare();
    /* No process of the sandbox may trace the guest, open its descriptors or write to its file. */
    prctl(PR_SET_DUMPABLE, 0);
    if (chdir("/") != 0 || !loop_open() || !take_signals() || !stream_open(in, out) ||
        (owns && !machine_own(argv[argc + 1], argv[argc + 2]))) {
        return give_up(EXIT_START, "dutyfree-guest: cannot start\n");
    }
    loop_run();
    machine_again(in);
    if (!leaves || !actions_idle()) end_everything();
    actions_clean_up();
    return 0;
}
