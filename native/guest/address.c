#include "address.h"

#include <arpa/inet.h>
#include <string.h>

enum { FAMILY_4 = 4, FAMILY_6 = 6, BYTES_4 = 4, BYTES_6 = 16, LOOPBACK_NET = 127 };

static bool parse_port(const char *text, uint16_t *port) {
    uint32_t number = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') return false;
    for (; *text != '\0'; text++) number = number * 10 + (uint32_t)(*text - '0');
    *port = (uint16_t)number;
    return number <= UINT16_MAX;
}

static void set(struct address *address, sa_family_t family, uint16_t port) {
    *address = (struct address){.length = family == AF_INET ? sizeof address->v4 : sizeof address->v6};
    address->any.sa_family = family;
    if (family == AF_INET) address->v4.sin_port = htons(port);
    else address->v6.sin6_port = htons(port);
}

bool address_parse(struct address *address, const char *text, const char *port_text) {
    uint16_t port;
    if (!parse_port(port_text, &port)) return false;
    set(address, AF_INET, port);
    if (inet_pton(AF_INET, text, &address->v4.sin_addr) == 1) return true;
    set(address, AF_INET6, port);
    return inet_pton(AF_INET6, text, &address->v6.sin6_addr) == 1;
}

void address_print(const struct address *address, char *text, uint16_t *port) {
    bool four = address->any.sa_family == AF_INET;
    const void *bytes = four ? (const void *)&address->v4.sin_addr : (const void *)&address->v6.sin6_addr;
    *port = ntohs(four ? address->v4.sin_port : address->v6.sin6_port);
    if (inet_ntop(four ? AF_INET : AF_INET6, bytes, text, INET6_ADDRSTRLEN) == NULL) *text = '\0';
}

bool address_same(const struct address *one, const struct address *other) {
    if (one->any.sa_family != other->any.sa_family) return false;
    if (one->any.sa_family == AF_INET) {
        return one->v4.sin_port == other->v4.sin_port && one->v4.sin_addr.s_addr == other->v4.sin_addr.s_addr;
    }
    return one->v6.sin6_port == other->v6.sin6_port &&
           memcmp(&one->v6.sin6_addr, &other->v6.sin6_addr, sizeof one->v6.sin6_addr) == 0;
}

bool address_is_loopback(const struct address *address) {
    if (address->any.sa_family == AF_INET) return ntohl(address->v4.sin_addr.s_addr) >> 24 == LOOPBACK_NET;
    return IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
}

size_t address_prefix_bytes(sa_family_t family) {
    return 1u + (family == AF_INET ? BYTES_4 : BYTES_6) + 2u;
}

void address_prefix_write(const struct address *address, uint8_t *prefix) {
    bool four = address->any.sa_family == AF_INET;
    size_t bytes = four ? BYTES_4 : BYTES_6;
    uint16_t port = ntohs(four ? address->v4.sin_port : address->v6.sin6_port);
    prefix[0] = four ? FAMILY_4 : FAMILY_6;
    memcpy(prefix + 1, four ? (const void *)&address->v4.sin_addr : (const void *)&address->v6.sin6_addr, bytes);
    prefix[1 + bytes] = (uint8_t)(port & 0xff);
    prefix[2 + bytes] = (uint8_t)(port >> 8);
}

size_t address_prefix_read(struct address *address, const uint8_t *bytes, size_t length) {
    if (length == 0 || (bytes[0] != FAMILY_4 && bytes[0] != FAMILY_6)) return 0;
    bool four = bytes[0] == FAMILY_4;
    size_t size = address_prefix_bytes(four ? AF_INET : AF_INET6);
    if (length < size) return 0;
    set(address, four ? AF_INET : AF_INET6, (uint16_t)(bytes[size - 2] | bytes[size - 1] << 8));
    if (four) memcpy(&address->v4.sin_addr, bytes + 1, BYTES_4);
    else memcpy(&address->v6.sin6_addr, bytes + 1, BYTES_6);
    return size;
}
