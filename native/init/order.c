#include "order.h"

#include "../common/fields.h"

bool order_read(const uint8_t bytes[ORDER_BYTES], struct order *order) {
    *order = (struct order){.disk_bytes = load_u64(bytes + 8),
                            .inodes = load_u64(bytes + 16),
                            .memory_bytes = load_u64(bytes + 24),
                            .pids = load_u64(bytes + 32),
                            .cpu_us = load_u64(bytes + 40)};
    return load_u32(bytes) == ORDER_MAGIC && order->disk_bytes > 0;
}
