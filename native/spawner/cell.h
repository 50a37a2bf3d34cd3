/* What a cell, or the spawner itself, holds on the machine and has to give back. */
#ifndef DUTYFREE_CELL_H
#define DUTYFREE_CELL_H

#include "spawner.h"

#define STATUS_EVENT ((uint64_t)1 << 32) /* marks epoll data that carry a slot number */

struct holdings {
    char *cgroups[MAX_CGROUPS];
    int cgroup_count;
    char *scratch[MAX_SCRATCH];
    int scratch_count;
};

/* Does OP_CGROUP, OP_SET or OP_SCRATCH and remembers what it made. */
bool holdings_take(struct holdings *holdings, const struct field *field, struct step *step);
/* False while a cgroup is still busy: the kernel lets go of a dead process a little later than its parent hears of it. */
bool holdings_drop_cgroups(struct holdings *holdings);
bool holdings_drop_scratch(const struct holdings *holdings);
void holdings_free(struct holdings *holdings);

#endif
