/* Cells, and the resources of the machine that cells and the spawner hold and must free. */
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
/* False while a cgroup is still busy: the kernel frees a dead process a little later than it notifies the parent. */
bool holdings_drop_cgroups(struct holdings *holdings);
bool holdings_drop_scratch(const struct holdings *holdings);
void holdings_free(struct holdings *holdings);

struct cell {
    bool used;
    uint64_t number;
    pid_t pid;      /* 0 once there is no process to wait for */
    bool removing;  /* `pid` is not the cell any more but the child that removes what it leaves */
    bool frozen;    /* not a cell but the writable space of one, shown at FROZEN/number */
    uint64_t origin; /* of a frozen space: the cell that it was of */
    bool pausable;  /* one of its cgroups may be frozen */
    bool ending;    /* the host waits for its exit alone: its death is not reported */
    bool image;     /* its writable space is a file system on a disk of its own */
    int kept;       /* its writable space, a mount that is nowhere yet; -1 for none */
    int root;       /* of a cell whose space was frozen: a child unmounts its root, which takes long; -1 for none */
    int status;     /* the cell's socket for requests and errors during its creation; -1 once it has started */
    int exit_status;
    int64_t ended_ms;
    struct ids ids;
    struct holdings holdings;
};

/* birth.c */
struct birth { /* a spawn request, read but for the operations that the cell itself does */
    uint64_t flags;
    int joins[MAX_CGROUPS], join_count, into, image, network, namespace;
    struct field user, caps, exec;
};

/* Does what has to be done before the cell exists. False with `step` filled in; `birth_close` is due either way. */
bool birth_read(const struct spawner *spawner, const uint8_t *fields, size_t length, struct birth *birth,
                struct cell *cell, struct step *step);
void birth_close(const struct birth *birth);
pid_t birth_clone(const struct birth *birth);
/* In the cell's first process. Returns only on failure. */
void birth_go(const struct spawner *spawner, const struct birth *birth, uint64_t root, const uint8_t *fields,
              size_t length, int stream, int status, struct step *step);
int clone_mount(const char *path); /* a copy of what is mounted there, attached nowhere */

#endif
