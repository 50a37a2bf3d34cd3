#include "hello.h"

#include <string.h>

#include "../common/fields.h"

enum { VERSION = 1, HOSTNAME = 2, MACHINE_ID = 3, SEED = 4, CLOCK = 5 };

static bool is_hexadecimal(const uint8_t *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if ((text[i] < '0' || text[i] > '9') && (text[i] < 'a' || text[i] > 'f')) return false;
    }
    return true;
}

static bool take(struct hello *hello, const struct field *field) {
    switch (field->tag) {
    case VERSION: return field_number(field, &hello->version);
    case CLOCK: return field_number(field, &hello->clock_ns);
    case HOSTNAME:
        if (field->length > HOSTNAME_MAX_BYTES) return false;
        hello->hostname_bytes = (uint8_t)field->length;
        memcpy(hello->hostname, field->data, field->length);
        return true;
    case MACHINE_ID:
        if (field->length != MACHINE_ID_BYTES || !is_hexadecimal(field->data, field->length)) return false;
        hello->has_machine_id = true;
        memcpy(hello->machine_id, field->data, MACHINE_ID_BYTES);
        return true;
    case SEED:
        if (field->length > SEED_MAX_BYTES) return false;
        hello->seed_bytes = (uint16_t)field->length;
        memcpy(hello->seed, field->data, field->length);
        return true;
    default: return true;
    }
}

bool hello_parse(struct hello *hello, const uint8_t *payload, size_t length) {
    struct field_reader reader;
    struct field field;
    *hello = (struct hello){0};
    fields_read(&reader, payload, length);
    while (fields_next(&reader, &field)) {
        if (!take(hello, &field)) return false;
    }
    return !reader.broken && hello->version > 0;
}
