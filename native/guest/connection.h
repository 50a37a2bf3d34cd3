/* Connections: actions without a process. A byte stream to a port of the sandbox, or from a program to one on which the
 * guest listens for the host; and datagrams. They use the outlets, intakes and credits of other actions. */
#ifndef DUTYFREE_CONNECTION_H
#define DUTYFREE_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "action.h"
#include "request.h"

/* Modes 5 to 8. */
void connection_start(uint32_t id, const struct request *request);
/* INPUT for a connection; what is wrong with it, or NULL. */
const char *connection_receive(struct action *action, const uint8_t *bytes, uint32_t length);
void connection_signal(struct action *action, int number);
/* What can be done now; true when the connection is over, which action->wait_status then describes. */
bool connection_settle(struct action *action);
/* Close all that the outlets and the intake do not hold; a listener's waiting ACCEPTs are refused. */
void connection_close(struct action *action);

#endif
