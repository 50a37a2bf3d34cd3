/* Frames of the wire protocol (docs/reference/wire-protocol.md): limits, kinds, and the header of 12 bytes. */
#ifndef DUTYFREE_FRAME_H
#define DUTYFREE_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum {
    PROTOCOL_VERSION = 1,
    FRAME_HEADER_BYTES = 12,
    FRAME_PAYLOAD_MAX_BYTES = 1 << 20,
    FRAME_DATA_MAX_BYTES = 1 << 16,
    FRAME_PING_MAX_BYTES = 64,
};

enum frame_kind {
    HOST_HELLO = 1,
    HOST_RUN = 2,
    HOST_INPUT = 3,
    HOST_INPUT_END = 4,
    HOST_OUTPUT_CREDIT = 5,
    HOST_SIGNAL = 6,
    HOST_RESIZE = 7,
    HOST_PING = 8,
    HOST_QUIT = 9,
    HOST_STOOD_STILL = 10,
    GUEST_HELLO = 65,
    GUEST_STARTED = 66,
    GUEST_OUTPUT = 67,
    GUEST_INPUT_CREDIT = 68,
    GUEST_EXIT = 69,
    GUEST_REFUSED = 70,
    GUEST_PONG = 71,
    GUEST_FAULT = 72,
    GUEST_OUTPUT_END = 73,
};

struct frame {
    uint32_t length;
    uint8_t kind;
    uint8_t stream;
    uint32_t id;
    const uint8_t *payload;
};

void frame_header_write(uint8_t header[FRAME_HEADER_BYTES], enum frame_kind kind, uint8_t stream, uint32_t id,
                        uint32_t length);

/* The frame at the start of `bytes`, if all of it is there: its size in bytes. 0 when more bytes are needed, and then
 * frame->length is known once the header is. -1 for a frame that no host may send, with the reason in `*fault`. */
ptrdiff_t frame_from_host(const uint8_t *bytes, size_t available, struct frame *frame, const char **fault);

#endif
