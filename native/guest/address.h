/* Addresses of sockets: as text in requests, and in front of datagrams. Without effects, so that it can be fuzzed. */
#ifndef DUTYFREE_ADDRESS_H
#define DUTYFREE_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { ADDRESS_PREFIX_MAX_BYTES = 1 + 16 + 2 };

struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    socklen_t length;
};

/* A literal IPv4 or IPv6 address and a decimal port: no names, as there is no resolver to trust. */
bool address_parse(struct address *address, const char *text, const char *port);
/* `text` has room for INET6_ADDRSTRLEN bytes. */
void address_print(const struct address *address, char *text, uint16_t *port);
bool address_same(const struct address *one, const struct address *other);
bool address_is_loopback(const struct address *address);

/* In front of a datagram: u8 family (4 or 6), the 4 or 16 bytes of the address, u16 port. */
size_t address_prefix_bytes(sa_family_t family);
void address_prefix_write(const struct address *address, uint8_t *prefix);
/* How many bytes it took, or 0. */
size_t address_prefix_read(struct address *address, const uint8_t *bytes, size_t length);

#endif
