#include "output.h"

#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "action.h"
#include "stream.h"

enum {
    LINGERING_MAX = 256,
    /* The kernel moves a terminal's bytes with a delay and cannot report how many are left; this is an upper bound. */
    TERMINAL_REST_BYTES = 256 * 1024,
};

static struct watch lingering[LINGERING_MAX] = {[0 ... LINGERING_MAX - 1] = WATCH_CLOSED};
static unsigned lingering_next;

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* How many bytes may be read now; past the output limit they are read to be dropped, which needs no credit. */
static uint64_t allowance(const struct action *action) {
    if (action->sent >= action->output_limit) return FRAME_DATA_MAX_BYTES;
    if (!stream_has_room()) return 0;
    return least(FRAME_DATA_MAX_BYTES, least(action->credit, action->output_limit - action->sent));
}

static void account(struct outlet *outlet, uint64_t bytes) {
    struct action *action = outlet->reader;
    action->produced[outlet->stream - 1] += bytes;
    if (action->ended) outlet->left_bytes -= least(outlet->left_bytes, bytes);
    if (action->sent >= action->output_limit) {
        stream_data_drop(bytes);
        return;
    }
    action->sent += bytes;
    action->credit -= bytes;
    stream_data_commit(action->id, outlet->stream, bytes);
}

/* One read; false when no more output is available now. */
static bool outlet_read(struct outlet *outlet) {
    uint64_t wanted = allowance(outlet->reader);
    if (outlet->reader->ended) wanted = least(wanted, outlet->left_bytes);
    if (wanted == 0) return false;
    ssize_t got = read(outlet->watch.fd, stream_data_room(), wanted);
    if (got > 0) {
        account(outlet, (uint64_t)got);
        return true;
    }
    if (got < 0 && errno == EINTR) return true;
    outlet->left_bytes = 0;
    if (got < 0 && errno != EAGAIN) outlet->error = errno;
    if (got == 0 || errno != EAGAIN) watch_close(&outlet->watch); /* a terminal reports its end with EIO */
    return false;
}

static void outlet_ready(struct watch *watch, uint32_t events) {
    (void)events;
    struct outlet *outlet = (struct outlet *)((char *)watch - offsetof(struct outlet, watch));
    if (outlet->reader == NULL) {
        watch_arm(watch, 0);
        return;
    }
    outlet_read(outlet);
    if (outlet->reader->ended || watch->fd < 0 || allowance(outlet->reader) == 0) action_queue(outlet->reader);
}

void outlet_open(struct outlet *outlet, int fd, uint8_t stream, bool terminal, struct action *reader) {
    *outlet = (struct outlet){
        .watch = {.fd = fd, .ready = outlet_ready}, .stream = stream, .terminal = terminal, .reader = reader};
}

void outlet_take(struct outlet *outlet) {
    outlet_read(outlet);
}

void outlet_arm(struct outlet *outlet) {
    const struct action *reader = outlet->reader;
    bool wanted = reader != NULL && allowance(reader) > 0 && (!reader->ended || outlet->left_bytes > 0);
    watch_arm(&outlet->watch, wanted ? EPOLLIN : 0);
}

void outlet_measure_rest(struct outlet *outlet) {
    int waiting = 0;
    if (outlet->watch.fd < 0 || outlet->reader == NULL) return;
    if (outlet->terminal) {
        outlet->left_bytes = TERMINAL_REST_BYTES;
    } else if (ioctl(outlet->watch.fd, FIONREAD, &waiting) == 0) {
        outlet->left_bytes = (uint64_t)waiting;
    }
}

bool outlet_drain(struct outlet *outlet) {
    while (outlet->watch.fd >= 0 && outlet->left_bytes > 0 && outlet_read(outlet)) continue;
    return outlet->watch.fd < 0 || outlet->left_bytes == 0;
}

static void lingering_read(struct watch *watch, uint32_t events) {
    (void)events;
    ssize_t got = read(watch->fd, stream_data_room(), FRAME_DATA_MAX_BYTES);
    if (got > 0) stream_data_drop((size_t)got);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) watch_close(watch);
}

/* A free slot, or the oldest one. */
static struct watch *lingering_place(void) {
    for (unsigned i = 0; i < LINGERING_MAX; i++) {
        struct watch *place = &lingering[(lingering_next + i) % LINGERING_MAX];
        if (place->fd < 0) return place;
    }
    return &lingering[lingering_next++ % LINGERING_MAX];
}

void outlet_linger(struct outlet *outlet) {
    if (outlet->watch.fd < 0) return;
    struct watch *oldest = lingering_place();
    watch_close(oldest);
    watch_move(&outlet->watch, oldest);
    oldest->ready = lingering_read;
    if (!watch_arm(oldest, EPOLLIN)) watch_close(oldest);
}
