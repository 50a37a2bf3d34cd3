/* The host's order to a machine that becomes a sandbox: 64 bytes, little endian, unused bytes zero. */
#ifndef DUTYFREE_ORDER_H
#define DUTYFREE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define ORDER_READY "R" /* sent by the machine when it waits for its order */

enum { ORDER_BYTES = 64, ORDER_MAGIC = 0x4d564644, CPU_PERIOD_US = 100000 };

struct order {
    uint64_t disk_bytes; /* what may be written */
    uint64_t inodes;
    uint64_t memory_bytes; /* this and those below: 0 means no bound */
    uint64_t pids;
    uint64_t cpu_us; /* of each period */
};

/* False for an invalid order. */
bool order_read(const uint8_t bytes[ORDER_BYTES], struct order *order);

#endif
