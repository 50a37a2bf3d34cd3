/* The host's HELLO: its version and, for a guest with its own machine, the machine's new identity. */
#ifndef DUTYFREE_HELLO_H
#define DUTYFREE_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOSTNAME_MAX_BYTES = 63, MACHINE_ID_BYTES = 32, SEED_MAX_BYTES = 256 };

struct hello {
    uint64_t version;
    uint64_t clock_ns; /* since 1970; 0: the host did not send it */
    uint8_t hostname_bytes;
    uint16_t seed_bytes;
    bool has_machine_id;
    char hostname[HOSTNAME_MAX_BYTES];
    char machine_id[MACHINE_ID_BYTES]; /* hexadecimal */
    uint8_t seed[SEED_MAX_BYTES];
};

/* False for a payload that is broken, lacks the version, or has a field of an invalid size. */
bool hello_parse(struct hello *hello, const uint8_t *payload, size_t length);

#endif
