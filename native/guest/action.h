/* Actions: from RUN to EXIT.
 *
 * Events only record what has happened and queue the action; actions_settle then does the work that is now possible
 * (write input, give credit, read the rest of the output, send EXIT), once per batch of events. An action's memory
 * lives until actions_bury, because later events of the same batch may still point at it. */
#ifndef DUTYFREE_ACTION_H
#define DUTYFREE_ACTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "input.h"
#include "loop.h"
#include "machine.h"
#include "output.h"
#include "request.h"
#include "timer.h"
#include "tree.h"

enum { ACTIONS_MAX = 4096 };

struct session;
struct connection;

struct action {
    uint32_t id;
    pid_t pid;               /* 0: no process of its own (a session's line), or it has been reaped */
    struct session *session; /* the session that it is, or whose line it runs */
    struct connection *connection; /* or NULL: it has a process */
    struct outlet *outlets;  /* stdout and stderr: its own, or those of the session's shell */
    struct outlet own_outlets[2];
    struct intake intake;
    struct timer timer;
    char *leftover; /* the file that an applet leaves behind if it is killed, or NULL */

    uint64_t credit;       /* output bytes that the host still accepts */
    uint64_t output_limit; /* output bytes that may be sent at all */
    uint64_t sent;
    uint64_t produced[2];
    uint64_t started_ns;
    uint64_t execute_ns;
    uint64_t cpu_us;
    uint64_t peak_rss_bytes;
    struct met met; /* how often the machine's limits had been hit when the action began */
    int wait_status; /* as wait4 gives it, once `ended` */
    uint64_t serial;
    bool manned;     /* it has a process, unlike a connection */
    bool alone;      /* no other process ran when it began (a line's own session does not count) */
    bool ended;      /* the command has exited; its output may still be on the way */
    bool terminal;
    bool timed_out;
    bool session_ended;
    bool queued; /* for settling */
    bool buried;

    struct action *next_by_id;
    struct action *next_by_pid;
    struct action *next_queued;
    struct action *next_buried;
};

/* Registers a new action; NULL with errno when there are too many, or no memory. */
struct action *action_new(uint32_t id, const struct request *request);
/* Forget an action that was refused. */
void action_discard(struct action *action);
struct action *action_find(uint32_t id);
void action_set_pid(struct action *action, pid_t pid);

/* The command has exited. */
void action_ended(struct action *action, int wait_status, const struct rusage *usage);
/* Which orphans of the guest end with this action. */
enum strays action_strays(const struct action *action);
void action_signal(struct action *action, int number, bool tree);
void action_queue(struct action *action);
void action_watch_deadline(struct action *action, uint64_t timeout_ms, void (*expired)(struct timer *timer));
/* The deadline of an action with a process of its own. */
void action_expired(struct timer *timer);
struct action *action_of_timer(struct timer *timer);

void actions_reap(void);
void actions_settle(void);
void actions_resume(void);
void actions_bury(void);
bool actions_idle(void);
/* The guest is ending, and all that it started was killed: remove what that may have left behind. */
void actions_clean_up(void);

#endif
