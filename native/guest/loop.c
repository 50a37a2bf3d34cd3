#include "loop.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "action.h"
#include "clock.h"
#include "stream.h"
#include "timer.h"

enum { BATCH = 64, SOON_NS = 200 * NS_PER_US };

static int epoll_fd = -1;
static bool stopping;
static uint64_t soon_ns; /* until then an event is expected soon, and polling is faster than sleeping */

bool loop_open(void) {
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return epoll_fd >= 0;
}

void loop_expect_soon(void) {
    soon_ns = now_ns() + SOON_NS;
}

/* Yields between polls, so that on a busy machine the process that sends the event can run. */
static int wait_for_events(struct epoll_event *events) {
    while (soon_ns != 0) {
        int ready = epoll_wait(epoll_fd, events, BATCH, 0);
        if (ready != 0 || now_ns() >= soon_ns) soon_ns = 0;
        if (ready != 0) return ready;
        sched_yield();
    }
    return epoll_wait(epoll_fd, events, BATCH, timers_wait_ms());
}

void loop_stop(void) {
    stopping = true;
}

bool watch_arm(struct watch *watch, uint32_t events) {
    if (watch->fd < 0 || watch->events == events) return true;
    int operation = events == 0 ? EPOLL_CTL_DEL : watch->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(epoll_fd, operation, watch->fd, &event) != 0) return false;
    watch->events = events;
    return true;
}

void watch_move(struct watch *from, struct watch *to) {
    to->fd = from->fd;
    to->events = from->events;
    struct epoll_event event = {.events = to->events, .data.ptr = to};
    if (to->events != 0) epoll_ctl(epoll_fd, EPOLL_CTL_MOD, to->fd, &event);
    *from = (struct watch)WATCH_CLOSED;
}

void watch_close(struct watch *watch) {
    if (watch->fd < 0) return;
    /* Another process may hold a copy of the descriptor, and then closing ours alone would leave it registered. */
    watch_arm(watch, 0);
    close(watch->fd);
    *watch = (struct watch)WATCH_CLOSED;
}

void loop_run(void) {
    struct epoll_event events[BATCH];
    while (!stopping) {
        int ready = wait_for_events(events);
        if (ready < 0 && errno != EINTR) return;
        for (int i = 0; i < ready && !stopping; i++) {
            struct watch *watch = events[i].data.ptr;
            /* An earlier event of this batch may have closed it; its memory lives until actions_bury. */
            if (watch->fd >= 0 && watch->events != 0) watch->ready(watch, events[i].events);
        }
        timers_fire();
        actions_settle();
        stream_flush();
        actions_bury();
        if (actions_idle()) stream_trim();
    }
}
