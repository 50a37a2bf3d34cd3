#include "session.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "dialect.h"
#include "dispatch.h"
#include "spawn.h"
#include "start.h"
#include "stream.h"
#include "tree.h"
#include "user.h"

enum {
    PRIVATE_FD_MIN = 100, /* above the numbers that descriptors have in the shell */
    STATUS_DIGITS_MAX = 3,
    EXIT_INTERRUPTED = 130,
    TEXT_KEEP_BYTES = 64 * 1024,
    PATIENCE_MS = 1000,
    BEGIN_CHECK_MS = 1,
};

struct session {
    struct action *shell;
    struct action *line; /* the one that runs, or NULL */
    const struct dialect *dialect;
    const char *stdin_path;
    char text_name[48]; /* of the file with the text, where descriptors have no paths; otherwise empty */
    struct watch status;
    struct timer interrupt_timer; /* while an interrupt waits for the line to begin */
    int driver_fd;
    int text_fd;
    size_t text_bytes;
    struct moment line_began;
    unsigned status_value;
    unsigned status_digits;
    bool has_user; /* the shell's ids are not the guest's, but these */
    uint32_t uid;
    uint32_t gid;
    bool up;
    bool interrupted;
    bool exited;
    int wait_status;
    struct rusage usage;
};

static void session_kill(struct timer *timer) {
    struct session *session = action_of_timer(timer)->session;
    if (session->shell->pid > 0) tree_kill(session->shell->pid, action_strays(session->shell));
}

static void line_kill(struct timer *timer) {
    struct session *session = action_of_timer(timer)->session;
    if (session->shell->pid > 0)
        tree_kill_since(session->shell->pid, session->line_began, action_strays(action_of_timer(timer)));
    timer_set(timer, now_ns() + (uint64_t)PATIENCE_MS * NS_PER_MS, session_kill);
}

/* Before the line has begun, the shell would ignore the signal. */
static void line_interrupt(struct session *session);

static void interrupt_again(struct timer *timer) {
    line_interrupt((struct session *)((char *)timer - offsetof(struct session, interrupt_timer)));
}

/* The prefix takes the shell's stdin away from the driver and from the text. */
static bool line_has_begun(const struct session *session) {
    char path[48];
    struct stat present, driver, text;
    snprintf(path, sizeof path, "/proc/%d/fd/0", (int)session->shell->pid);
    bool seen = session->has_user ? user_stat(session->uid, session->gid, path, &present) : stat(path, &present) == 0;
    if (!seen || fstat(session->driver_fd, &driver) != 0 || fstat(session->text_fd, &text) != 0)
        return true;
    return (present.st_dev != driver.st_dev || present.st_ino != driver.st_ino) &&
           (present.st_dev != text.st_dev || present.st_ino != text.st_ino);
}

static void line_interrupt(struct session *session) {
    if (session->shell->pid <= 0) return;
    if (line_has_begun(session)) {
        session->interrupted = true;
        kill(-session->shell->pid, SIGINT);
    } else {
        timer_set(&session->interrupt_timer, now_ns() + (uint64_t)BEGIN_CHECK_MS * NS_PER_MS, interrupt_again);
    }
}

static void line_stop(struct action *line) {
    line_interrupt(line->session);
    timer_set(&line->timer, now_ns() + (uint64_t)PATIENCE_MS * NS_PER_MS, line_kill);
}

static void line_expired(struct timer *timer) {
    struct action *line = action_of_timer(timer);
    line->timed_out = true;
    line_stop(line);
}

static void line_ended(struct session *session, int wait_status) {
    timer_clear(&session->interrupt_timer);
    action_ended(session->line, wait_status, NULL);
    /* Free the memory of a long text now, because it counts against the sandbox's memory limit. */
    if (session->text_bytes > TEXT_KEEP_BYTES && ftruncate(session->text_fd, 0) == 0) session->text_bytes = 0;
}

void session_signal(struct action *action, int number, bool tree) {
    struct session *session = action->session;
    pid_t pid = session->shell->pid;
    if (pid <= 0 || action->ended) return;
    if (action == session->line && number == SIGINT && !tree) {
        line_interrupt(session);
    } else if (action == session->line && number == SIGKILL && tree) {
        line_stop(action);
    } else if (action == session->shell && number == SIGKILL) {
        tree_kill(pid, action_strays(action));
    } else if (tree) {
        tree_signal(pid, number);
    } else {
        kill(-pid, number);
    }
}

static void status_received(struct session *session, unsigned code) {
    if (!session->up) {
        session->up = true;
        stream_send(GUEST_STARTED, session->shell->id, NULL, 0);
    } else if (session->line != NULL && !session->line->ended) {
        if (session->interrupted && code == DIALECT_ABORTED) code = EXIT_INTERRUPTED;
        line_ended(session, (int)(code & 0xff) << 8);
    }
}

static bool status_take(struct session *session, char byte) {
    if (byte == '\n' && session->status_digits > 0) {
        unsigned code = session->status_value;
        session->status_value = session->status_digits = 0;
        status_received(session, code);
        return true;
    }
    if (!isdigit((unsigned char)byte) || session->status_digits == STATUS_DIGITS_MAX) return false;
    session->status_value = session->status_value * 10 + (unsigned)(byte - '0');
    session->status_digits++;
    return true;
}

static void status_ready(struct watch *watch, uint32_t events) {
    (void)events;
    struct session *session = (struct session *)((char *)watch - offsetof(struct session, status));
    char bytes[64];
    ssize_t got = read(watch->fd, bytes, sizeof bytes);
    if (got == 0) watch_close(watch); /* the shell exits, or has exec'd another program */
    for (ssize_t i = 0; i < got; i++) {
        if (status_take(session, bytes[i])) continue;
        /* Only a process that tampers with the session writes anything else. */
        if (session->shell->pid > 0) tree_kill(session->shell->pid, action_strays(session->shell));
        return;
    }
}

void session_shell_exited(struct action *shell, int wait_status, const struct rusage *usage) {
    struct session *session = shell->session;
    session->exited = true;
    session->wait_status = wait_status;
    session->usage = *usage;
    if (session->line == NULL) {
        action_ended(shell, wait_status, usage);
    } else if (!session->line->ended) {
        session->line->session_ended = true;
        line_ended(session, wait_status);
    }
}

static void close_session(struct session *session) {
    watch_close(&session->status);
    timer_clear(&session->interrupt_timer);
    start_close((int[]){session->driver_fd, session->text_fd}, 2);
    if (*session->text_name != '\0') unlink(session->text_name);
}

void session_action_finished(struct action *action) {
    struct session *session = action->session;
    if (action == session->line) {
        session->line = NULL;
        for (int i = 0; i < 2; i++) session->shell->own_outlets[i].reader = NULL;
        action->session = NULL;
        if (session->exited) action_ended(session->shell, session->wait_status, &session->usage);
    } else {
        close_session(session);
    }
}

void session_free(struct action *action) {
    free(action->session);
}

static bool write_text(struct session *session, const char *text) {
    size_t prefix_bytes = strlen(session->dialect->prefix);
    size_t bytes = strlen(text);
    struct iovec parts[] = {
        {.iov_base = (char *)session->dialect->prefix, .iov_len = prefix_bytes},
        {.iov_base = (char *)text, .iov_len = bytes},
        {.iov_base = (char *)"\n", .iov_len = 1},
    };
    size_t before = session->text_bytes;
    session->text_bytes = prefix_bytes + bytes + 1;
    if (session->text_bytes < before && ftruncate(session->text_fd, (off_t)session->text_bytes) != 0) return false;
    return pwritev(session->text_fd, parts, 3, 0) == (ssize_t)session->text_bytes;
}

/* The driver text of one line fits into the pipe, because the shell has read the text before it. */
static void drive(const struct session *session, const char *const parts[2]) {
    const char *texts[3] = {parts[0], parts[1] != NULL ? session->stdin_path : "", parts[1] != NULL ? parts[1] : ""};
    struct iovec pieces[3];
    for (int i = 0; i < 3; i++) pieces[i] = (struct iovec){.iov_base = (char *)texts[i], .iov_len = strlen(texts[i])};
    if (writev(session->driver_fd, pieces, 3) < 0) return; /* the shell has ended; its exit arrives as another event */
}

void session_run_line(uint32_t id, const struct request *request) {
    struct action *shell = request->session > UINT32_MAX ? NULL : action_find((uint32_t)request->session);
    struct session *session = shell == NULL ? NULL : shell->session;
    if (session == NULL || session->shell != shell || session->exited) {
        refuse(id, ESRCH, REFUSED_SESSION, "no such session");
        return;
    }
    if (session->line != NULL) {
        refuse(id, EBUSY, REFUSED_REQUEST, "the session runs another line");
        return;
    }
    struct action *line = action_new(id, request);
    if (line == NULL || !write_text(session, request->argv[0])) {
        refuse(id, errno, REFUSED_CAPACITY, NULL);
        if (line != NULL) action_discard(line);
        return;
    }
    line->session = session;
    line->outlets = shell->own_outlets;
    for (int i = 0; i < 2; i++) shell->own_outlets[i].reader = line;
    session->line = line;
    session->interrupted = false;
    session->line_began = moment_now();
    line->started_ns = now_ns();
    drive(session, session->dialect->line);
    loop_expect_soon(); /* many lines are short builtins */
    action_watch_deadline(line, request->timeout_ms, line_expired);
    action_queue(line);
}

enum given { GIVEN_STDIN, GIVEN_STDOUT, GIVEN_STDERR, GIVEN_STATUS, GIVEN_TEXT, GIVEN_COUNT };

/* A file without a name, if the shell can read its stdin by a path. Without a /proc (a container may forbid it) it
 * cannot, and the file gets one. */
static int open_text(struct session *session) {
    if (access("/proc/self/fd", F_OK) == 0) return memfd_create("dutyfree", MFD_CLOEXEC);
    snprintf(session->text_name, sizeof session->text_name, "/dev/shm/.dutyfree-line-%u", (unsigned)session->shell->id);
    session->stdin_path = session->text_name;
    unlink(session->text_name);
    return open(session->text_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

/* The ends that the guest keeps go to the session, those for the shell to `given`. */
static bool open_private(struct session *session, int given[GIVEN_COUNT]) {
    int status = -1;
    session->text_fd = open_text(session);
    if (session->has_user && *session->text_name != '\0' && fchown(session->text_fd, session->uid, (gid_t)-1) != 0) return false;
    if (session->text_fd < 0 || !start_pipe(&session->driver_fd, &given[GIVEN_STDIN], 1)) return false;
    if (!start_pipe(&session->status.fd, &status, 0)) return false;
    given[GIVEN_STATUS] = fcntl(status, F_DUPFD_CLOEXEC, PRIVATE_FD_MIN);
    close(status);
    given[GIVEN_TEXT] = fcntl(session->text_fd, F_DUPFD_CLOEXEC, PRIVATE_FD_MIN);
    return given[GIVEN_STATUS] >= 0 && given[GIVEN_TEXT] >= 0 && watch_arm(&session->status, EPOLLIN);
}

static bool open_output(struct session *session, bool merge, int given[GIVEN_COUNT]) {
    struct outlet *outlets = session->shell->own_outlets;
    int fd;
    if (!start_pipe(&fd, &given[GIVEN_STDOUT], 0)) return false;
    outlet_open(&outlets[0], fd, 1, false, NULL);
    if (merge) return true;
    if (!start_pipe(&fd, &given[GIVEN_STDERR], 0)) return false;
    outlet_open(&outlets[1], fd, 2, false, NULL);
    return true;
}

static pid_t spawn_shell(const struct dialect *dialect, const char *path, const struct request *request,
                         const int given[GIVEN_COUNT], struct failure *failure) {
    int stderr_fd = given[GIVEN_STDERR] >= 0 ? given[GIVEN_STDERR] : given[GIVEN_STDOUT];
    struct launch launch = {.argv = (char *const *)dialect->argv,
                            .envp = request->envp,
                            .path = path,
                            .stdio = {given[GIVEN_STDIN], given[GIVEN_STDOUT], stderr_fd},
                            .extra = {{.from = given[GIVEN_STATUS], .to = dialect->status_fd},
                                      {.from = given[GIVEN_TEXT], .to = dialect->text_fd}},
                            .account = request->account,
                            .cwd = request->cwd,
                            .failure = failure};
    return spawn(&launch);
}

static void launch_shell(struct session *session, const struct request *request, const char *path) {
    struct action *shell = session->shell;
    int given[GIVEN_COUNT] = {-1, -1, -1, -1, -1};
    bool entered = true;
    struct failure failure = {0};
    pid_t pid = -1;
    if (open_private(session, given) && open_output(session, (request->flags & RUN_MERGE) != 0, given)) {
        entered = start_enter(request);
        if (entered) pid = spawn_shell(session->dialect, path, request, given, &failure);
    }
    int error = errno;
    start_leave(request);
    start_close(given, GIVEN_COUNT);
    if (pid < 0) {
        if (!entered) refuse_cwd(shell->id, error, request->cwd);
        else if (!start_refused(shell->id, request, &failure)) refuse(shell->id, error, REFUSED_CAPACITY, NULL);
        close_session(session);
        action_discard(shell);
        return;
    }
    action_set_pid(shell, pid);
    action_watch_deadline(shell, request->timeout_ms, action_expired);
    drive(session, session->dialect->init);
}

void session_start(uint32_t id, const struct request *request) {
    const char *path = request->argc > 0 ? request->argv[0] : access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
    if (access(path, X_OK) != 0) {
        refuse(id, errno, REFUSED_SHELL, NULL);
        return;
    }
    struct action *shell = action_new(id, request);
    struct session *session = shell == NULL ? NULL : calloc(1, sizeof *session);
    if (session == NULL) {
        refuse(id, errno, REFUSED_CAPACITY, NULL);
        if (shell != NULL) action_discard(shell);
        return;
    }
    shell->session = session;
    *session = (struct session){.shell = shell,
                                .dialect = dialect_of(path),
                                .stdin_path = access("/dev/stdin", F_OK) == 0 ? "/dev/stdin" : "/proc/self/fd/0",
                                .status = {.fd = -1, .ready = status_ready},
                                .driver_fd = -1,
                                .text_fd = -1};
    if (request->account != NULL) {
        session->has_user = true;
        session->uid = request->account->uid;
        session->gid = request->account->gid;
    }
    launch_shell(session, request, path);
}
