/* The event loop: one epoll, and watches that map each descriptor to its callback. */
#ifndef DUTYFREE_LOOP_H
#define DUTYFREE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct watch {
    int fd;          /* -1 when closed */
    uint32_t events; /* registered with epoll; 0 when not registered */
    void (*ready)(struct watch *watch, uint32_t events);
};

#define WATCH_CLOSED {.fd = -1}

bool loop_open(void);
/* Handles events until the stream has ended. */
void loop_run(void);
/* The next event will come within microseconds: do not sleep at once. */
void loop_expect_soon(void);
/* Makes loop_run return after the current batch of events. */
void loop_stop(void);

/* Ask for `events` (0: none, not even hang-ups, which epoll would repeat without end). False if the kernel refuses. */
bool watch_arm(struct watch *watch, uint32_t events);
/* Hand the descriptor, with what is asked of it, to another watch. */
void watch_move(struct watch *from, struct watch *to);
void watch_close(struct watch *watch);

#endif
