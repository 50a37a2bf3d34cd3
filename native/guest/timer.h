/* Deadlines: a heap of timers, looked at by the loop. */
#ifndef DUTYFREE_TIMER_H
#define DUTYFREE_TIMER_H

#include <stdbool.h>
#include <stdint.h>

enum { TIMERS_PER_ACTION = 2 };

struct timer {
    uint64_t at_ns;
    uint32_t place; /* in the heap, counted from 1; 0 when not set */
    void (*fire)(struct timer *timer);
};

/* Set, or set anew. There are TIMERS_PER_ACTION places for every action, so this cannot fail. */
void timer_set(struct timer *timer, uint64_t at_ns, void (*fire)(struct timer *timer));
void timer_clear(struct timer *timer);
/* How long epoll may wait: milliseconds, rounded up; -1 without timers. */
int timers_wait_ms(void);
void timers_fire(void);
/* Every deadline comes that much later: the sandbox stood still. */
void timers_delay(uint64_t delay_ns);

#endif
