#include "timer.h"

#include <limits.h>
#include <stddef.h>

#include "action.h"
#include "clock.h"
#include "stream.h"

enum { DEFERRED_MAX = 16 };

static struct timer *heap[TIMERS_PER_ACTION * ACTIONS_MAX + 1]; /* from 1: the children of n are 2n and 2n + 1 */
static uint32_t count;

static void put(uint32_t place, struct timer *timer) {
    heap[place] = timer;
    timer->place = place;
}

static void sift_up(struct timer *timer, uint32_t place) {
    for (; place > 1 && heap[place / 2]->at_ns > timer->at_ns; place /= 2) put(place, heap[place / 2]);
    put(place, timer);
}

static void sift_down(struct timer *timer, uint32_t place) {
    for (uint32_t child = place * 2; child <= count; child = place * 2) {
        if (child < count && heap[child + 1]->at_ns < heap[child]->at_ns) child++;
        if (heap[child]->at_ns >= timer->at_ns) break;
        put(place, heap[child]);
        place = child;
    }
    put(place, timer);
}

void timer_clear(struct timer *timer) {
    uint32_t place = timer->place;
    if (place == 0) return;
    timer->place = 0;
    struct timer *last = heap[count--];
    if (last == timer) return;
    sift_up(last, place);
    sift_down(last, last->place);
}

void timer_set(struct timer *timer, uint64_t at_ns, void (*fire)(struct timer *timer)) {
    timer_clear(timer);
    timer->at_ns = at_ns;
    timer->fire = fire;
    sift_up(timer, ++count);
}

int timers_wait_ms(void) {
    if (count == 0) return -1;
    uint64_t now = now_ns();
    if (heap[1]->at_ns <= now) return 0;
    uint64_t wait_ms = (heap[1]->at_ns - now + NS_PER_MS - 1) / NS_PER_MS;
    return wait_ms > INT_MAX ? INT_MAX : (int)wait_ms;
}

void timers_delay(uint64_t delay_ns) {
    for (uint32_t place = 1; place <= count; place++) { /* all alike, so the heap stays in order */
        heap[place]->at_ns = heap[place]->at_ns > UINT64_MAX - delay_ns ? UINT64_MAX : heap[place]->at_ns + delay_ns;
    }
}

void timers_fire(void) {
    if (count == 0) return;
    uint64_t now = now_ns();
    /* After a standstill everything is overdue, until the host's STOOD_STILL, which is on its way, has been read. */
    static int deferred;
    if (heap[1]->at_ns <= now && deferred < DEFERRED_MAX && stream_has_input()) {
        deferred++;
        return;
    }
    deferred = 0;
    while (count > 0 && heap[1]->at_ns <= now) {
        struct timer *due = heap[1];
        timer_clear(due);
        due->fire(due);
    }
}
