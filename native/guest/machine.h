/* What a guest does that has a machine to itself (--machine): it gives the machine its identity, tells when its bounds
 * were met, and makes a fresh start in a machine that was multiplied. */
#ifndef DUTYFREE_GUEST_MACHINE_H
#define DUTYFREE_GUEST_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "hello.h"

struct met {
    uint64_t oom_kills;
    uint64_t fork_refusals;
};

/* The stream is the port `path`; over the port `control` the host hears that the guest has started, and can have it set
 * the clock, or start again for a stream of which it has not heard before, in a machine that was saved and multiplied. */
bool machine_own(const char *path, const char *control);
/* Does nothing for a guest that owns no machine. A machine that cannot be given random numbers of its own is a fault. */
void machine_identify(const struct hello *hello);
/* How often its bounds were met so far; zeros for a guest that owns no machine. */
struct met machine_met(void);
/* The same as it was known when it was last asked for. */
struct met machine_met_before(void);
/* If the host has asked for it: end everything and start again. Returns if it has not, or if that fails. */
void machine_again(int stream);

#endif
