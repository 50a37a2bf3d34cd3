/* Bytes as a host might send them: through the frame parser, the field parser and the RUN parser. */
#include <stdlib.h>
#include <string.h>

#include "../common/fields.h"
#include "../common/frame.h"
#include "../guest/hello.h"
#include "../guest/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_request(const uint8_t *payload, size_t length) {
    struct request request;
    const char *reason = NULL;
    if (request_parse(&request, payload, length, &reason) != REQUEST_GOOD) return;
    for (size_t i = 0; i < request.argc; i++) {
        if (request.argv[i] == NULL) abort();
    }
    if (request.argv[request.argc] != NULL) abort();
    const char *path = request_env(&request, "PATH");
    if (path != NULL && strlen(path) > length) abort();
    if (request.cwd != NULL && strlen(request.cwd) > length) abort();
    request_free(&request);
}

static void check_hello(const uint8_t *payload, size_t length) {
    struct hello hello;
    if (!hello_parse(&hello, payload, length)) return;
    if (hello.hostname_bytes > HOSTNAME_MAX_BYTES || hello.seed_bytes > SEED_MAX_BYTES) abort();
}

static void check_fields(const uint8_t *payload, size_t length) {
    struct field_reader reader;
    struct field field;
    uint64_t number;
    fields_read(&reader, payload, length);
    while (fields_next(&reader, &field)) {
        if (field.data + field.length > payload + length) abort();
        field_number(&field, &number);
    }
}

static void check_numbers(const struct frame *frame) {
    uint64_t first;
    uint64_t second;
    if (numbers_parse(frame, &first, &second) != NULL) return;
    if (frame->kind == HOST_OUTPUT_CREDIT && (first == 0 || first > CREDIT_MAX_BYTES)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_numbers(&(struct frame){.kind = HOST_OUTPUT_CREDIT, .id = 1, .length = (uint32_t)size, .payload = data});
    check_hello(data, size);
    check_request(data, size); /* also without a frame, so that the fuzzer need not find a length first */
    struct frame frame;
    const char *fault = NULL;
    ptrdiff_t used;
    while ((used = frame_from_host(data, size, &frame, &fault)) > 0) {
        check_fields(frame.payload, frame.length);
        if (frame.kind == HOST_HELLO) check_hello(frame.payload, frame.length);
        bool has_numbers = frame.kind == HOST_OUTPUT_CREDIT || frame.kind == HOST_SIGNAL || frame.kind == HOST_RESIZE;
        if (has_numbers) check_numbers(&frame);
        if (frame.kind == HOST_RUN) check_request(frame.payload, frame.length);
        data += used;
        size -= (size_t)used;
    }
    if (used < 0 && fault == NULL) abort();
    return 0;
}
