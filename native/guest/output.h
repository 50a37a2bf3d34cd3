/* Output: from a command's pipes or terminal to OUTPUT frames, within the host's credit and the output limit. */
#ifndef DUTYFREE_OUTPUT_H
#define DUTYFREE_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "loop.h"

struct action;

struct outlet {
    struct watch watch;
    struct action *reader; /* NULL: no action reads it now */
    uint8_t stream;        /* 1 stdout, 2 stderr */
    bool terminal;
    int error;           /* that ended it, or 0 */
    uint64_t left_bytes; /* of what was in it when the command ended, still to be read */
};

void outlet_open(struct outlet *outlet, int fd, uint8_t stream, bool terminal, struct action *reader);
/* Read once, if bytes are there and the reader may read. */
void outlet_take(struct outlet *outlet);
/* Ask for events exactly when the reader may read. */
void outlet_arm(struct outlet *outlet);
/* The command has ended: what is in the outlet now is the rest of its output. */
void outlet_measure_rest(struct outlet *outlet);
/* Read the rest as far as credit and room allow; true when there is none left. */
bool outlet_drain(struct outlet *outlet);
/* The action is over, but background processes may still write: their output is read and dropped. */
void outlet_linger(struct outlet *outlet);

#endif
