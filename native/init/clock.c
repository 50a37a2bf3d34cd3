#include "clock.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "../guest/clock.h"

enum { MEASURED_US = 50000, TRIES = 20 };

struct moment {
    uint64_t ns;
    uint64_t ticks;
};

#if defined __x86_64__
static uint64_t ticks_now(void) {
    return __builtin_ia32_rdtsc();
}
#else
static uint64_t ticks_now(void) {
    return 0;
}
#endif

/* The reading with the shortest interruption, out of several. */
static struct moment moment_now(void) {
    struct moment best = {0};
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before_ns = clock_now_ns(CLOCK_MONOTONIC_RAW);
        uint64_t ticks = ticks_now();
        uint64_t after_ns = clock_now_ns(CLOCK_MONOTONIC_RAW);
        if (after_ns - before_ns >= least_ns) continue;
        least_ns = after_ns - before_ns;
        best = (struct moment){.ns = before_ns + least_ns / 2, .ticks = ticks};
    }
    return best;
}

int clock_tell(void) {
    struct moment first = moment_now();
    usleep(MEASURED_US);
    struct moment second = moment_now();
    printf("%" PRIu64 "\n", (second.ticks - first.ticks) * NS_PER_MS / (second.ns - first.ns));
    return 0;
}
