#include "action.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "connection.h"
#include "descriptors.h"
#include "session.h"
#include "spawn.h"
#include "stream.h"

enum {
    BUCKETS = 1024,
    MANY = 64, /* actions that surely fit the usual limit of 1,024 descriptors, with their sessions and terminals */
    EXIT_TIMED_OUT = 1,
    EXIT_TRUNCATED = 2,
    EXIT_SESSION_ENDED = 4,
    EXIT_DISK_FULL = 8,
    EXIT_OOM_KILLED = 16,
    EXIT_PIDS_LIMITED = 32,
    LAST_SHARE = 256, /* less than 1/256 of a disk is too little to be of use */
};

static const uint64_t TIMEOUT_MAX_MS = 1000ULL * 3600 * 24 * 365;

static struct action *by_id[BUCKETS];
static struct action *by_pid[BUCKETS];
static struct action *queue_first;
static struct action **queue_end = &queue_first;
static struct action *buried;
static unsigned count;
static unsigned manned_count;
static uint64_t serial; /* of the last action */

struct action *action_new(uint32_t id, const struct request *request) {
    struct action *action = NULL;
    if (count == ACTIONS_MAX) {
        errno = EAGAIN;
    } else {
        action = calloc(1, sizeof *action);
    }
    if (action == NULL) return NULL;
    if (++count == MANY) descriptors_raise_limit();
    action->id = id;
    action->manned = request->mode < MODE_DIAL;
    if (action->manned) {
        action->serial = ++serial;
        action->alone = ++manned_count == 1u + (request->mode == MODE_LINE);
    }
    action->credit = request->credit;
    action->output_limit = request->output_limit;
    action->outlets = action->own_outlets;
    action->started_ns = now_ns();
    action->met = machine_met_before();
    for (int i = 0; i < 2; i++) outlet_open(&action->own_outlets[i], -1, (uint8_t)(i + 1), false, action);
    intake_open(&action->intake, -1, false);
    action->next_by_id = by_id[id % BUCKETS];
    by_id[id % BUCKETS] = action;
    return action;
}

struct action *action_find(uint32_t id) {
    struct action *action = by_id[id % BUCKETS];
    while (action != NULL && action->id != id) action = action->next_by_id;
    return action;
}

void action_set_pid(struct action *action, pid_t pid) {
    action->pid = pid;
    action->next_by_pid = by_pid[pid % BUCKETS];
    by_pid[pid % BUCKETS] = action;
}

static struct action *take_by_pid(pid_t pid) {
    for (struct action **at = &by_pid[pid % BUCKETS]; *at != NULL; at = &(*at)->next_by_pid) {
        struct action *action = *at;
        if (action->pid != pid) continue;
        *at = action->next_by_pid;
        action->pid = 0;
        return action;
    }
    return NULL;
}

void action_discard(struct action *action) {
    struct action **at = &by_id[action->id % BUCKETS];
    while (*at != action) at = &(*at)->next_by_id;
    *at = action->next_by_id;
    timer_clear(&action->timer);
    if (action->connection != NULL) connection_close(action);
    intake_close(&action->intake);
    for (int i = 0; i < 2; i++) watch_close(&action->own_outlets[i].watch);
    action->buried = true;
    action->next_buried = buried;
    buried = action;
    count--;
    if (action->manned) manned_count--;
}

void action_queue(struct action *action) {
    if (action->queued || action->buried) return;
    action->queued = true;
    action->next_queued = NULL;
    *queue_end = action;
    queue_end = &action->next_queued;
}

static void remove_leftover(struct action *action) {
    if (action->leftover != NULL) unlink(action->leftover);
    free(action->leftover);
    action->leftover = NULL;
}

void action_ended(struct action *action, int wait_status, const struct rusage *usage) {
    action->ended = true;
    remove_leftover(action); /* after a normal end there is none: the applet has renamed it to its target */
    action->wait_status = wait_status;
    action->execute_ns = now_ns() - action->started_ns;
    if (usage != NULL) {
        action->cpu_us = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
                         (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
        action->peak_rss_bytes = (uint64_t)usage->ru_maxrss * 1024;
    }
    timer_clear(&action->timer);
    for (int i = 0; i < 2; i++) outlet_measure_rest(&action->outlets[i]);
    action_queue(action);
}

void actions_reap(void) {
    int status;
    struct rusage usage;
    pid_t pid;
    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        struct action *action = take_by_pid(pid);
        if (action == NULL) continue; /* an orphan, or the child of a refused action */
        if (action->session != NULL) {
            session_shell_exited(action, status, &usage);
        } else {
            action_ended(action, status, &usage);
        }
    }
}

enum strays action_strays(const struct action *action) {
    if (!spawn_may_stray()) return STRAYS_NONE;
    return action->alone && action->serial == serial ? STRAYS_ALL : STRAYS_OF_SESSION;
}

void action_signal(struct action *action, int number, bool tree) {
    if (action->connection != NULL) {
        connection_signal(action, number);
    } else if (action->session != NULL) {
        session_signal(action, number, tree);
    } else if (action->pid > 0 && tree && number == SIGKILL) {
        tree_kill(action->pid, action_strays(action));
    } else if (action->pid > 0 && tree) {
        tree_signal(action->pid, number);
    } else if (action->pid > 0) {
        kill(-action->pid, number);
    }
}

struct action *action_of_timer(struct timer *timer) {
    return (struct action *)((char *)timer - offsetof(struct action, timer));
}

void action_watch_deadline(struct action *action, uint64_t timeout_ms, void (*expired)(struct timer *timer)) {
    if (timeout_ms == 0) return;
    if (timeout_ms > TIMEOUT_MAX_MS) timeout_ms = TIMEOUT_MAX_MS;
    timer_set(&action->timer, now_ns() + timeout_ms * NS_PER_MS, expired);
}

void action_expired(struct timer *timer) {
    struct action *action = action_of_timer(timer);
    action->timed_out = true;
    if (action->pid > 0) tree_kill(action->pid, action_strays(action));
}

/* Checked only after a failure: a full disk matters only if it may be the reason. */
static bool disk_is_full(void) {
    struct statfs space;
    return statfs("/", &space) == 0 &&
           ((space.f_blocks > 0 && space.f_bavail <= space.f_blocks / LAST_SHARE) || (space.f_files > 0 && space.f_ffree == 0));
}

/* Limits that only this machine's kernel counts. Read at every end, so that a later action is not blamed for them. */
static unsigned bounds_met(const struct action *action) {
    struct met now = machine_met();
    return (now.oom_kills > action->met.oom_kills ? EXIT_OOM_KILLED : 0u) |
           (now.fork_refusals > action->met.fork_refusals ? EXIT_PIDS_LIMITED : 0u);
}

static void send_exit(const struct action *action) {
    unsigned met = bounds_met(action);
    uint8_t payload[128];
    struct field_writer fields;
    fields_write(&fields, payload, sizeof payload);
    if (WIFSIGNALED(action->wait_status)) {
        fields_put_number(&fields, 2, (uint64_t)WTERMSIG(action->wait_status));
    } else {
        fields_put_number(&fields, 1, (uint64_t)WEXITSTATUS(action->wait_status));
    }
    bool truncated = action->produced[0] + action->produced[1] > action->sent;
    fields_put_number(&fields, 3, action->execute_ns);
    fields_put_number(&fields, 4, action->cpu_us);
    fields_put_number(&fields, 5, action->peak_rss_bytes);
    fields_put_number(&fields, 6,
                      (action->timed_out ? EXIT_TIMED_OUT : 0u) | (truncated ? EXIT_TRUNCATED : 0u) |
                          (action->session_ended ? EXIT_SESSION_ENDED : 0u) |
                          (action->wait_status != 0 && disk_is_full() ? EXIT_DISK_FULL : 0u) |
                          (action->wait_status != 0 ? met : 0u));
    fields_put_number(&fields, 7, action->produced[0]);
    fields_put_number(&fields, 8, action->produced[1]);
    stream_send_fields(GUEST_EXIT, action->id, &fields);
}

static void finish(struct action *action) {
    send_exit(action);
    for (int i = 0; i < 2; i++) outlet_linger(&action->own_outlets[i]);
    if (action->session != NULL) session_action_finished(action);
    action_discard(action);
}

static void settle(struct action *action) {
    if (action->connection != NULL) {
        if (!connection_settle(action)) return;
        send_exit(action);
        action_discard(action);
        return;
    }
    intake_pump(action);
    if (action->ended) {
        bool out_drained = outlet_drain(&action->outlets[0]);
        bool err_drained = outlet_drain(&action->outlets[1]);
        if (out_drained && err_drained && stream_has_room()) {
            finish(action);
            return;
        }
    }
    for (int i = 0; i < 2; i++) outlet_arm(&action->outlets[i]);
}

void actions_settle(void) {
    while (queue_first != NULL) {
        struct action *action = queue_first;
        queue_first = action->next_queued;
        if (queue_first == NULL) queue_end = &queue_first;
        action->queued = false;
        if (!action->buried) settle(action);
    }
}

void actions_resume(void) {
    for (int i = 0; i < BUCKETS; i++) {
        for (struct action *action = by_id[i]; action != NULL; action = action->next_by_id) action_queue(action);
    }
    actions_settle();
}

void actions_bury(void) {
    while (buried != NULL) {
        struct action *action = buried;
        buried = action->next_buried;
        session_free(action);
        free(action->connection);
        free(action->leftover);
        free(action);
    }
}

bool actions_idle(void) {
    return count == 0;
}

void actions_clean_up(void) {
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct action *action = by_id[i]; action != NULL; action = action->next_by_id) {
            if (action->leftover != NULL && action->pid > 0) {
                kill(action->pid, SIGKILL); /* in case that the tree walk missed it */
                waitpid(action->pid, NULL, 0);
            }
            remove_leftover(action);
        }
    }
}
