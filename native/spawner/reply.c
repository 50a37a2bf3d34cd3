/* Replies of the spawner to the host. The event loop notices when the host is gone, not this file. */
#include <string.h>
#include <sys/socket.h>

#include "spawner.h"

void reply(struct spawner *spawner, enum reply kind, const struct field_writer *fields) {
    uint8_t message[1 + 512];
    message[0] = (uint8_t)kind;
    memcpy(message + 1, fields->buffer, fields->used);
    (void)send(spawner->control, message, 1 + fields->used, MSG_NOSIGNAL);
}

void reply_failed(struct spawner *spawner, uint64_t cell, const struct step *step) {
    uint8_t buffer[512];
    struct field_writer fields;
    fields_write(&fields, buffer, sizeof buffer);
    fields_put_number(&fields, TAG_CELL, cell);
    fields_put_number(&fields, TAG_ERRNO, (uint64_t)step->error);
    fields_put_number(&fields, TAG_STATUS, step->operation);
    fields_put_text(&fields, TAG_STEP, step->detail);
    reply(spawner, REPLY_FAILED, &fields);
}

void reply_number(struct spawner *spawner, enum reply kind, uint64_t cell, uint8_t tag, uint64_t number) {
    uint8_t buffer[64];
    struct field_writer fields;
    fields_write(&fields, buffer, sizeof buffer);
    fields_put_number(&fields, TAG_CELL, cell);
    fields_put_number(&fields, tag, number);
    reply(spawner, kind, &fields);
}
