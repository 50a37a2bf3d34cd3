#ifndef DUTYFREE_CLOCK_H
#define DUTYFREE_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { NS_PER_US = 1000, NS_PER_MS = 1000 * 1000, NS_PER_S = 1000 * 1000 * 1000 };

static inline uint64_t clock_now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline uint64_t now_ns(void) {
    return clock_now_ns(CLOCK_MONOTONIC);
}

#endif
