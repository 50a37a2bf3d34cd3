#include "fields.h"

#include <string.h>

enum { FIELD_HEADER = 5 };

uint32_t load_u32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

uint64_t load_u64(const uint8_t *bytes) {
    return (uint64_t)load_u32(bytes) | (uint64_t)load_u32(bytes + 4) << 32;
}

void store_u32(uint8_t *bytes, uint32_t number) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(number >> (8 * i));
}

void store_u64(uint8_t *bytes, uint64_t number) {
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> (8 * i));
}

void fields_read(struct field_reader *reader, const void *payload, size_t length) {
    *reader = (struct field_reader){.next = payload, .left = length};
}

bool fields_next(struct field_reader *reader, struct field *field) {
    if (reader->left == 0 || reader->broken) return false;
    if (reader->left < FIELD_HEADER) {
        reader->broken = true;
        return false;
    }
    uint32_t length = load_u32(reader->next + 1);
    if (length > reader->left - FIELD_HEADER) {
        reader->broken = true;
        return false;
    }
    *field = (struct field){.tag = reader->next[0], .data = reader->next + FIELD_HEADER, .length = length};
    reader->next += FIELD_HEADER + length;
    reader->left -= FIELD_HEADER + length;
    return true;
}

bool field_number(const struct field *field, uint64_t *number) {
    if (field->length != 8) return false;
    *number = load_u64(field->data);
    return true;
}

void fields_write(struct field_writer *writer, void *buffer, size_t capacity) {
    *writer = (struct field_writer){.buffer = buffer, .capacity = capacity};
}

void fields_put(struct field_writer *writer, uint8_t tag, const void *data, size_t length) {
    if (writer->overflow || length > UINT32_MAX || writer->capacity - writer->used < FIELD_HEADER ||
        writer->capacity - writer->used - FIELD_HEADER < length) {
        writer->overflow = true;
        return;
    }
    uint8_t *at = writer->buffer + writer->used;
    at[0] = tag;
    store_u32(at + 1, (uint32_t)length);
    if (length > 0) memcpy(at + FIELD_HEADER, data, length);
    writer->used += FIELD_HEADER + length;
}

void fields_put_text(struct field_writer *writer, uint8_t tag, const char *text) {
    fields_put(writer, tag, text, strlen(text));
}

void fields_put_number(struct field_writer *writer, uint8_t tag, uint64_t number) {
    uint8_t bytes[8];
    store_u64(bytes, number);
    fields_put(writer, tag, bytes, sizeof bytes);
}
