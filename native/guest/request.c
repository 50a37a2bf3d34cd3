#include "request.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fields.h"

enum run_tag {
    TAG_MODE = 1,
    TAG_ARG = 2,
    TAG_ENV = 3,
    TAG_CWD = 4,
    TAG_FLAGS = 5,
    TAG_TIMEOUT_MS = 6,
    TAG_OUTPUT_LIMIT = 7,
    TAG_CREDIT = 8,
    TAG_ROWS = 9,
    TAG_COLS = 10,
    TAG_SESSION = 11,
    TAG_USER = 12,
};

struct sizes {
    size_t args;
    size_t envs;
    size_t text_bytes; /* of every string, with its terminator */
};

static uint64_t *number_for(struct request *request, uint8_t tag) {
    switch (tag) {
    case TAG_MODE: return &request->mode;
    case TAG_FLAGS: return &request->flags;
    case TAG_TIMEOUT_MS: return &request->timeout_ms;
    case TAG_OUTPUT_LIMIT: return &request->output_limit;
    case TAG_CREDIT: return &request->credit;
    case TAG_ROWS: return &request->rows;
    case TAG_COLS: return &request->cols;
    case TAG_SESSION: return &request->session;
    default: return NULL;
    }
}

static bool is_text(uint8_t tag) {
    return tag == TAG_ARG || tag == TAG_ENV || tag == TAG_CWD || tag == TAG_USER;
}

static const char *measure(struct request *request, struct field_reader reader, struct sizes *sizes, bool *broken) {
    struct field field;
    while (fields_next(&reader, &field)) {
        uint64_t *number = number_for(request, field.tag);
        if (number != NULL && !field_number(&field, number)) return "a number that is not 8 bytes long";
        if (!is_text(field.tag)) continue;
        if (memchr(field.data, 0, field.length) != NULL) return "a NUL byte in an argument, a variable, the cwd or the user";
        sizes->args += field.tag == TAG_ARG;
        sizes->envs += field.tag == TAG_ENV;
        sizes->text_bytes += (size_t)field.length + 1;
    }
    *broken = reader.broken;
    return NULL;
}

/* argv and envp, then the strings, in one piece of memory. */
static bool lay_out(struct request *request, struct field_reader reader, const struct sizes *sizes) {
    size_t pointers = sizes->args + 1 + sizes->envs + 1;
    request->memory = malloc(pointers * sizeof(char *) + sizes->text_bytes);
    if (request->memory == NULL) return false;
    request->argc = sizes->args;
    request->argv = request->memory;
    request->envp = request->argv + sizes->args + 1;
    char **next_arg = request->argv;
    char **next_env = request->envp;
    char *text = (char *)(request->envp + sizes->envs + 1);
    struct field field;
    while (fields_next(&reader, &field)) {
        if (!is_text(field.tag)) continue;
        memcpy(text, field.data, field.length);
        text[field.length] = '\0';
        if (field.tag == TAG_ARG) *next_arg++ = text;
        if (field.tag == TAG_ENV) *next_env++ = text;
        if (field.tag == TAG_CWD) request->cwd = text;
        if (field.tag == TAG_USER) request->user = text;
        text += (size_t)field.length + 1;
    }
    *next_arg = NULL;
    *next_env = NULL;
    return true;
}

static const char *senseless(const struct request *request) {
    bool terminal = (request->flags & RUN_PTY) != 0;
    if (request->mode > MODE_DATAGRAMS) return "an unknown mode";
    if (request->flags > (RUN_PTY | RUN_STDIN | RUN_MERGE)) return "an unknown flag";
    if (request->credit > CREDIT_MAX_BYTES) return "more credit than there can be";
    if (request->rows > UINT16_MAX || request->cols > UINT16_MAX) return "a window that is too large";
    if (terminal && request->mode > MODE_SHELL) return "a terminal for something that has none";
    if (request->user != NULL && request->mode == MODE_LINE) return "a user for a line of a session, which has one";
    if (request->user != NULL && request->mode >= MODE_DIAL) return "a user for a connection, which has no process";
    if (request->mode >= MODE_DIAL) {
        size_t wanted = request->mode == MODE_ACCEPT ? 0 : 2;
        return request->argc != wanted ? "not an address and a port" : NULL;
    }
    if (request->mode == MODE_SESSION) return request->argc > 1 ? "more than one shell" : NULL;
    if (request->mode == MODE_SHELL || request->mode == MODE_LINE) {
        return request->argc != 1 ? "not exactly one line" : NULL;
    }
    return request->argc == 0 || request->argv[0][0] == '\0' ? "an empty command" : NULL;
}

enum request_outcome request_parse(struct request *request, const uint8_t *payload, size_t length,
                                   const char **reason) {
    *request = (struct request){.output_limit = UINT64_MAX};
    struct field_reader reader;
    fields_read(&reader, payload, length);
    struct sizes sizes = {0};
    bool broken = false;
    *reason = measure(request, reader, &sizes, &broken);
    if (broken) return REQUEST_BROKEN;
    if (*reason != NULL) return REQUEST_BAD;
    if (!lay_out(request, reader, &sizes)) return REQUEST_NO_MEMORY;
    *reason = senseless(request);
    if (*reason == NULL) return REQUEST_GOOD;
    request_free(request);
    return REQUEST_BAD;
}

void request_free(struct request *request) {
    free(request->memory);
    request->memory = NULL;
}

const char *request_env(const struct request *request, const char *name) {
    size_t length = strlen(name);
    for (char **entry = request->envp; *entry != NULL; entry++) {
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return *entry + length + 1;
    }
    return NULL;
}

const char *numbers_parse(const struct frame *frame, uint64_t *first, uint64_t *second) {
    struct field_reader reader;
    struct field field;
    bool found = false;
    *first = *second = 0;
    fields_read(&reader, frame->payload, frame->length);
    while (fields_next(&reader, &field)) {
        if (field.tag == 1) found = field_number(&field, first);
        if (field.tag == 2 && !field_number(&field, second)) return "a frame with a broken number";
    }
    if (!found || reader.broken) return "a frame without its numbers";
    if (frame->kind == HOST_OUTPUT_CREDIT && (*first == 0 || *first > CREDIT_MAX_BYTES)) {
        return "an OUTPUT_CREDIT out of range";
    }
    return NULL;
}
