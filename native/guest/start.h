/* Starting an action's command: its pipes or terminal, its working directory, its process. */
#ifndef DUTYFREE_START_H
#define DUTYFREE_START_H

#include <stdint.h>

#include "action.h"
#include "request.h"
#include "spawn.h"

/* Modes 0 to 2. Sends REFUSED if the command cannot be started because the request is wrong or descriptors ran out. */
void start_command(uint32_t id, const struct request *request);
/* Set the size of the action's terminal, if it has one. */
void start_resize(struct action *action, uint16_t rows, uint16_t cols);

/* A pipe whose end for the guest does not block; `guest_end` is 0 to read from it, 1 to write into it. */
bool start_pipe(int *guest_fd, int *child_fd, int guest_end);
/* Close those that are open. */
void start_close(const int *fds, int count);
/* Enter the request's working directory for a spawn; then leave it again. False with errno. */
bool start_enter(const struct request *request);
void start_leave(const struct request *request);
/* Whether a failed spawn has set `failure`: then the request was answered with REFUSED. */
bool start_refused(uint32_t id, const struct request *request, const struct failure *failure);

#endif
