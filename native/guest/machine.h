/* A guest with its own machine (--machine): it gives the machine its identity, reports when limits were hit, and
 * restarts in a clone of a saved machine. */
#ifndef DUTYFREE_GUEST_MACHINE_H
#define DUTYFREE_GUEST_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "hello.h"

struct met {
    uint64_t oom_kills;
    uint64_t fork_refusals;
};

/* The stream is the port `path`. Over the port `control` the guest reports that it has started, and the host can order it
 * to set the clock or, in a clone of a saved machine, to start again with a new stream. */
bool machine_own(const char *path, const char *control);
/* Does nothing for a guest that owns no machine. A machine that cannot be given random numbers of its own is a fault. */
void machine_identify(const struct hello *hello);
/* How often the machine's limits were hit so far; zeros for a guest without its own machine. */
struct met machine_met(void);
/* The result of the last call of machine_met. */
struct met machine_met_before(void);
/* If the host has asked for it: end everything and start again. Returns if it has not, or if that fails. */
void machine_again(int stream);

#endif
