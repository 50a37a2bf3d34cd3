#include "frame.h"

#include "fields.h"

void frame_header_write(uint8_t header[FRAME_HEADER_BYTES], enum frame_kind kind, uint8_t stream, uint32_t id,
                        uint32_t length) {
    store_u32(header, length);
    header[4] = (uint8_t)kind;
    header[5] = stream;
    header[6] = 0;
    header[7] = 0;
    store_u32(header + 8, id);
}

static const char *fault_of_length(const struct frame *frame) {
    switch (frame->kind) {
    case HOST_INPUT:
        if (frame->length == 0) return "an empty INPUT frame";
        return frame->length > FRAME_DATA_MAX_BYTES ? "an INPUT frame past its limit" : NULL;
    case HOST_PING:
        return frame->length > FRAME_PING_MAX_BYTES ? "a PING frame past its limit" : NULL;
    case HOST_INPUT_END:
    case HOST_QUIT:
        return frame->length > 0 ? "a payload where none is allowed" : NULL;
    default:
        return frame->length > FRAME_PAYLOAD_MAX_BYTES ? "a frame past its limit" : NULL;
    }
}

static const char *fault_of_header(const uint8_t *header, const struct frame *frame) {
    if (frame->kind < HOST_HELLO || frame->kind > HOST_STOOD_STILL) return "an unknown kind of frame";
    if (frame->stream != 0 || header[6] != 0 || header[7] != 0) return "a header with bits that must be zero";
    int about_stream = frame->kind == HOST_HELLO || frame->kind == HOST_PING || frame->kind >= HOST_QUIT;
    if (about_stream != (frame->id == 0)) return "an id that does not fit the kind of frame";
    return fault_of_length(frame);
}

ptrdiff_t frame_from_host(const uint8_t *bytes, size_t available, struct frame *frame, const char **fault) {
    *frame = (struct frame){0};
    if (available < FRAME_HEADER_BYTES) return 0;
    *frame = (struct frame){.length = load_u32(bytes),
                            .kind = bytes[4],
                            .stream = bytes[5],
                            .id = load_u32(bytes + 8),
                            .payload = bytes + FRAME_HEADER_BYTES};
    *fault = fault_of_header(bytes, frame);
    if (*fault != NULL) return -1;
    if (available - FRAME_HEADER_BYTES < frame->length) return 0;
    return (ptrdiff_t)FRAME_HEADER_BYTES + (ptrdiff_t)frame->length;
}
