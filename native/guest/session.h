/* Sessions: a persistent shell that runs one line at a time. */
#ifndef DUTYFREE_SESSION_H
#define DUTYFREE_SESSION_H

#include <stdint.h>
#include <sys/resource.h>

#include "action.h"
#include "request.h"

void session_start(uint32_t id, const struct request *request);
void session_run_line(uint32_t id, const struct request *request);

void session_signal(struct action *action, int number, bool tree);
void session_shell_exited(struct action *shell, int wait_status, const struct rusage *usage);
/* The EXIT of a line, or of the session itself, has been sent. */
void session_action_finished(struct action *action);
/* Free the session that an action may be, together with it. */
void session_free(struct action *action);

#endif
