#include "stream.h"

#include <errno.h>
#include <poll.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "action.h"
#include "dispatch.h"
#include "loop.h"

enum {
    PAGE_BYTES = 4096,
    /* A header and the largest payload; whole pages, as stream_trim gives back nothing less. */
    IN_CAPACITY_BYTES = FRAME_PAYLOAD_MAX_BYTES + PAGE_BYTES,
    READ_BYTES = 64 * 1024,
    OUT_CAPACITY_BYTES = 1 << 20,
    PIPES_PAUSE_BYTES = 512 * 1024,
    PIPES_RESUME_BYTES = 256 * 1024,
    /* Above this there is still room for one INPUT_CREDIT of every action and for the bytes of one OUTPUT frame. */
    HOST_PAUSE_BYTES = 640 * 1024,
    EAGER_FLUSH_BYTES = 128 * 1024,
    KEEP_BYTES = 4 * PAGE_BYTES,
};

struct buffer {
    uint8_t *data;
    size_t start;
    size_t end;
    size_t touched; /* the farthest byte that was used since the last trim */
};

static _Alignas(PAGE_BYTES) uint8_t in_bytes[IN_CAPACITY_BYTES];
static _Alignas(PAGE_BYTES) uint8_t out_bytes[OUT_CAPACITY_BYTES];
static struct buffer in = {.data = in_bytes};
static struct buffer out = {.data = out_bytes};
static struct watch in_watch = WATCH_CLOSED;
static struct watch out_watch = WATCH_CLOSED; /* closed when one descriptor serves both directions */
static bool pipes_paused;
static bool broken;

static void use(struct buffer *buffer) {
    if (buffer->end > buffer->touched) buffer->touched = buffer->end;
}

static size_t unsent(void) {
    return out.end - out.start;
}

void stream_end(void) {
    broken = true;
    out.start = out.end = 0;
    loop_stop();
}

static void arm(void) {
    uint32_t reading = unsent() < HOST_PAUSE_BYTES ? EPOLLIN : 0;
    uint32_t writing = unsent() > 0 ? EPOLLOUT : 0;
    if (out_watch.fd < 0) {
        watch_arm(&in_watch, reading | writing);
    } else {
        watch_arm(&in_watch, reading);
        watch_arm(&out_watch, writing);
    }
}

/* Handle the whole frames that have arrived, as long as their answers have room. */
static void take_frames(void) {
    while (!broken && unsent() < HOST_PAUSE_BYTES) {
        struct frame frame;
        const char *fault;
        ptrdiff_t size = frame_from_host(in.data + in.start, in.end - in.start, &frame, &fault);
        if (size == 0) break;
        if (size < 0) {
            stream_fault(fault);
            return;
        }
        in.start += (size_t)size;
        dispatch_frame(&frame);
    }
    if (in.start == in.end) in.start = in.end = 0;
}

static void receive(void) {
    if (in.start > 0) {
        memmove(in.data, in.data + in.start, in.end - in.start);
        in.end -= in.start;
        in.start = 0;
    }
    size_t room = IN_CAPACITY_BYTES - in.end;
    ssize_t got = read(in_watch.fd, in.data + in.end, room < READ_BYTES ? room : READ_BYTES);
    if (got > 0) {
        in.end += (size_t)got;
        use(&in);
        take_frames();
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        stream_end();
    }
}

static void write_out(void) {
    while (unsent() > 0) {
        ssize_t sent = write(out_watch.fd < 0 ? in_watch.fd : out_watch.fd, out.data + out.start, unsent());
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return;
        if (sent < 0) {
            stream_end();
            return;
        }
        out.start += (size_t)sent;
    }
    out.start = out.end = 0;
}

void stream_flush(void) {
    if (broken) return;
    write_out();
    if (in.end > in.start && unsent() < HOST_PAUSE_BYTES) {
        take_frames(); /* they had waited for room */
        actions_settle();
        write_out();
    }
    if (pipes_paused && unsent() < PIPES_RESUME_BYTES) {
        pipes_paused = false;
        actions_resume();
    }
    if (!broken) arm();
}

static void stream_ready(struct watch *watch, uint32_t events) {
    if (events & EPOLLIN) {
        receive();
    } else if (events & (EPOLLHUP | EPOLLERR)) {
        stream_end();
    }
    (void)watch; /* EPOLLOUT: the loop flushes after every batch */
}

static bool set_nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

bool stream_has_input(void) {
    struct pollfd descriptor = {.fd = in_watch.fd, .events = POLLIN};
    return !broken && poll(&descriptor, 1, 0) > 0;
}

bool stream_open(int in_fd, int out_fd) {
    in_watch = (struct watch){.fd = in_fd, .ready = stream_ready};
    if (out_fd != in_fd) out_watch = (struct watch){.fd = out_fd, .ready = stream_ready};
    return set_nonblocking(in_fd) && set_nonblocking(out_fd) && watch_arm(&in_watch, EPOLLIN);
}

static uint8_t *room_for(size_t bytes) {
    if (OUT_CAPACITY_BYTES - out.end < bytes && out.start > 0) {
        memmove(out.data, out.data + out.start, unsent());
        out.end -= out.start;
        out.start = 0;
    }
    return OUT_CAPACITY_BYTES - out.end < bytes ? NULL : out.data + out.end;
}

void stream_send(enum frame_kind kind, uint32_t id, const void *payload, size_t length) {
    uint8_t *at = room_for(FRAME_HEADER_BYTES + length);
    if (at == NULL) { /* impossible for a host within its limits, because the guest pauses above */
        stream_end();
        return;
    }
    frame_header_write(at, kind, 0, id, (uint32_t)length);
    if (length > 0) memcpy(at + FRAME_HEADER_BYTES, payload, length);
    out.end += FRAME_HEADER_BYTES + length;
    use(&out);
}

void stream_send_fields(enum frame_kind kind, uint32_t id, const struct field_writer *fields) {
    stream_send(kind, id, fields->buffer, fields->used);
}

bool stream_has_room(void) {
    if (unsent() >= PIPES_PAUSE_BYTES) pipes_paused = true;
    return !pipes_paused;
}

uint8_t *stream_data_room(void) {
    /* Callers check stream_has_room first or drop the bytes, and this much room is left even when output pauses. */
    return room_for(FRAME_HEADER_BYTES + FRAME_DATA_MAX_BYTES) + FRAME_HEADER_BYTES;
}

void stream_data_commit(uint32_t id, uint8_t stream, size_t length) {
    frame_header_write(out.data + out.end, GUEST_OUTPUT, stream, id, (uint32_t)length);
    out.end += FRAME_HEADER_BYTES + length;
    use(&out);
    if (unsent() >= EAGER_FLUSH_BYTES && !broken) write_out();
}

void stream_data_drop(size_t length) {
    size_t end = out.end + FRAME_HEADER_BYTES + length;
    if (end > out.touched) out.touched = end;
}

void stream_fault(const char *text) {
    uint8_t payload[128];
    struct field_writer fields;
    fields_write(&fields, payload, sizeof payload);
    fields_put_text(&fields, 1, text);
    stream_send_fields(GUEST_FAULT, 0, &fields);
    if (!broken) write_out();
    stream_end();
}

static void trim(struct buffer *buffer) {
    if (buffer->end > 0 || buffer->touched <= KEEP_BYTES) return;
    madvise(buffer->data + KEEP_BYTES, buffer->touched - KEEP_BYTES, MADV_DONTNEED);
    buffer->touched = 0;
}

void stream_trim(void) {
    trim(&in);
    trim(&out);
}
