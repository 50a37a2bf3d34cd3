#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "applets.h"
#include "dispatch.h"
#include "spawn.h"
#include "stream.h"
#include "terminal.h"
#include "user.h"

enum { STATUS_NOT_EXECUTABLE = 126 << 8 };

void start_close(const int *fds, int count) {
    for (int i = 0; i < count; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
}

bool start_enter(const struct request *request) {
    if (request->account != NULL) return true; /* the child does, with that user's rights */
    return request->cwd == NULL || chdir(request->cwd) == 0;
}

void start_leave(const struct request *request) {
    /* Nothing to be done if it fails: the guest itself uses no relative paths. */
    if (request->cwd != NULL && request->account == NULL && chdir("/") != 0) return;
}

bool start_pipe(int *guest_fd, int *child_fd, int guest_end) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    *guest_fd = ends[guest_end];
    *child_fd = ends[1 - guest_end];
    fcntl(*guest_fd, F_SETFL, O_NONBLOCK);
    return true;
}

/* Fills in the child's descriptors and gives their other ends to the action. */
static bool open_pipes(struct action *action, const struct request *request, int child[3]) {
    int out = -1;
    int err = -1;
    int in = -1;
    if ((request->flags & RUN_STDIN) && !start_pipe(&in, &child[0], 1)) return false;
    if (in >= 0) intake_open(&action->intake, in, false);
    if (!start_pipe(&out, &child[1], 0)) return false;
    outlet_open(&action->own_outlets[0], out, 1, false, action);
    if (request->flags & RUN_MERGE) return true;
    if (!start_pipe(&err, &child[2], 0)) return false;
    outlet_open(&action->own_outlets[1], err, 2, false, action);
    return true;
}

static bool open_terminal(struct action *action, const struct request *request, int child[3]) {
    int master = terminal_open((uint16_t)request->rows, (uint16_t)request->cols, &child[0]);
    if (master < 0) return false;
    /* A copy of its own for each direction: epoll knows a descriptor only once. */
    int copy = fcntl(master, F_DUPFD_CLOEXEC, 3);
    outlet_open(&action->own_outlets[0], master, 1, true, action);
    if (copy < 0) return false;
    intake_open(&action->intake, copy, true);
    action->terminal = true;
    return true;
}

static void describe(struct launch *launch, const struct request *request, char **shell_argv, const int child[3]) {
    *launch = (struct launch){.argv = request->argv,
                              .envp = request->envp,
                              .search = request_env(request, "PATH"),
                              .stdio = {child[0], child[1], child[2]},
                              .terminal = (request->flags & RUN_PTY) != 0,
                              .extra = {{.from = -1}, {.from = -1}},
                              .account = request->account,
                              .cwd = request->cwd};
    if (launch->terminal) launch->stdio[1] = launch->stdio[2] = child[0];
    if (!launch->terminal && (request->flags & RUN_MERGE)) launch->stdio[2] = child[1];
    if (request->mode == MODE_APPLET) launch->applet = applet_run;
    if (request->mode != MODE_SHELL) return;
    shell_argv[0] = (char *)"/bin/sh";
    shell_argv[1] = (char *)"-c";
    shell_argv[2] = request->argv[0];
    shell_argv[3] = NULL;
    launch->argv = shell_argv;
    launch->path = shell_argv[0];
}

bool start_refused(uint32_t id, const struct request *request, const struct failure *failure) {
    if (failure->identity_error != 0) {
        user_refuse(id, request->account, failure->identity_error);
    } else if (failure->cwd_error != 0) {
        refuse_cwd(id, failure->cwd_error, request->cwd);
    } else if (failure->stalled) {
        refuse(id, ETIMEDOUT, REFUSED_CAPACITY, "the user's process did not begin in time");
    }
    return failure->identity_error != 0 || failure->cwd_error != 0 || failure->stalled;
}

static bool arm(struct action *action) {
    return watch_arm(&action->own_outlets[0].watch, EPOLLIN) && watch_arm(&action->own_outlets[1].watch, EPOLLIN);
}

void start_command(uint32_t id, const struct request *request) {
    struct action *action = action_new(id, request);
    if (action == NULL) {
        refuse(id, errno, REFUSED_CAPACITY, NULL);
        return;
    }
    int child[3] = {-1, -1, -1};
    bool terminal = (request->flags & RUN_PTY) != 0;
    if (!(terminal ? open_terminal : open_pipes)(action, request, child) || !arm(action)) {
        bool absent = errno == ENOENT || errno == EACCES || errno == EPERM; /* the sandbox has no terminals */
        refuse(id, errno, absent ? REFUSED_REQUEST : REFUSED_CAPACITY, NULL);
        action_discard(action);
    } else if (!start_enter(request)) {
        refuse_cwd(id, errno, request->cwd);
        action_discard(action);
    } else {
        struct launch launch;
        char *shell_argv[4];
        describe(&launch, request, shell_argv, child);
        if (launch.applet != NULL) action->leftover = applet_leftover(request->argv);
        struct failure failure = {0};
        launch.failure = &failure;
        pid_t pid = spawn(&launch);
        int error = errno;
        start_leave(request);
        if (pid < 0 && start_refused(id, request, &failure)) {
            action_discard(action);
            start_close(child, 3);
            return;
        }
        if (terminal) stream_send(GUEST_STARTED, id, NULL, 0);
        if (pid > 0) {
            action_set_pid(action, pid);
            action_watch_deadline(action, request->timeout_ms, action_expired);
        } else {
            spawn_complain(launch.stdio[2], launch.argv[0], error);
            action_ended(action, STATUS_NOT_EXECUTABLE, NULL);
        }
        action_queue(action);
    }
    start_close(child, 3);
}

void start_resize(struct action *action, uint16_t rows, uint16_t cols) {
    if (action->terminal) terminal_resize(action->own_outlets[0].watch.fd, rows, cols);
}
