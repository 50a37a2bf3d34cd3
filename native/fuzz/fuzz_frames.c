/* Bytes as a host might send them: through the frame parser, the field parser and the RUN parser. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fields.h"
#include "../common/frame.h"
#include "../guest/address.h"
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
    if (request.user != NULL && (strlen(request.user) > length || request.mode >= MODE_LINE)) abort();
    struct address address;
    if (request.mode >= MODE_DIAL && request.mode != MODE_ACCEPT && address_parse(&address, request.argv[0], request.argv[1])) {
        char text[INET6_ADDRSTRLEN];
        char port_text[8];
        uint16_t port;
        struct address again;
        address_print(&address, text, &port);
        snprintf(port_text, sizeof port_text, "%u", (unsigned)port);
        if (!address_parse(&again, text, port_text) || !address_same(&address, &again)) abort();
    }
    request_free(&request);
}

/* The address in front of a datagram: what was read is written as the same bytes. */
static void check_prefix(const uint8_t *bytes, size_t length) {
    struct address address;
    uint8_t prefix[ADDRESS_PREFIX_MAX_BYTES];
    size_t used = address_prefix_read(&address, bytes, length);
    if (used > length || used > sizeof prefix) abort();
    if (used == 0) return;
    if (address_prefix_bytes(address.any.sa_family) != used) abort();
    address_prefix_write(&address, prefix);
    if (memcmp(prefix, bytes, used) != 0) abort();
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
    check_prefix(data, size);
    check_request(data, size); /* also without a frame, so that the fuzzer need not find a length first */
    struct frame frame;
    const char *fault = NULL;
    ptrdiff_t used;
    while ((used = frame_from_host(data, size, &frame, &fault)) > 0) {
        check_fields(frame.payload, frame.length);
        if (frame.kind == HOST_HELLO) check_hello(frame.payload, frame.length);
        bool has_numbers = frame.kind == HOST_OUTPUT_CREDIT || frame.kind == HOST_SIGNAL || frame.kind == HOST_RESIZE ||
                           frame.kind == HOST_STOOD_STILL;
        if (has_numbers) check_numbers(&frame);
        if (frame.kind == HOST_INPUT) check_prefix(frame.payload, frame.length);
        if (frame.kind == HOST_RUN) check_request(frame.payload, frame.length);
        data += used;
        size -= (size_t)used;
    }
    if (used < 0 && fault == NULL) abort();
    return 0;
}
