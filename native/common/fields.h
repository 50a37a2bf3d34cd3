/* Fields: the one encoding of every structured payload, "u8 tag, u32 length, bytes", little endian.
 *
 * Readers never trust a length; writers never overrun their buffer but remember that they would have. */
#ifndef DUTYFREE_FIELDS_H
#define DUTYFREE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct field {
    uint8_t tag;
    const uint8_t *data; /* points into the payload that is being read */
    uint32_t length;
};

struct field_reader {
    const uint8_t *next;
    size_t left;
    bool broken; /* the payload ended inside a field */
};

struct field_writer {
    uint8_t *buffer;
    size_t capacity;
    size_t used;
    bool overflow; /* something did not fit; the content is not to be sent */
};

void fields_read(struct field_reader *reader, const void *payload, size_t length);
/* The next field, or false at the end of the payload and where it is broken (see reader->broken). */
bool fields_next(struct field_reader *reader, struct field *field);
/* The integer in a field of exactly 8 bytes; false for any other length. */
bool field_number(const struct field *field, uint64_t *number);

void fields_write(struct field_writer *writer, void *buffer, size_t capacity);
void fields_put(struct field_writer *writer, uint8_t tag, const void *data, size_t length);
void fields_put_text(struct field_writer *writer, uint8_t tag, const char *text);
void fields_put_number(struct field_writer *writer, uint8_t tag, uint64_t number);

uint32_t load_u32(const uint8_t *bytes);
uint64_t load_u64(const uint8_t *bytes);
void store_u32(uint8_t *bytes, uint32_t number);
void store_u64(uint8_t *bytes, uint64_t number);

#endif
