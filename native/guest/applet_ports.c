/* The applet `ports`: the TCP sockets of the sandbox that listen, from the kernel's own tables. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../common/fields.h"
#include "applet_io.h"
#include "applets.h"

enum { PORTS_MAX = 4096, LINE_BYTES = 512, LISTENING = 0x0A, RECORD_BYTES = 96 };

static bool put(int family, const uint32_t *words, unsigned port) {
    uint8_t record[RECORD_BYTES];
    char text[INET6_ADDRSTRLEN];
    struct field_writer fields;
    if (inet_ntop(family, words, text, sizeof text) == NULL) return false;
    fields_write(&fields, record + 4, sizeof record - 4);
    fields_put_text(&fields, 1, text);
    fields_put_number(&fields, 2, port);
    store_u32(record, (uint32_t)fields.used);
    return write_full(STDOUT_FILENO, record, 4 + fields.used);
}

/* One table; -1 with errno when it cannot be read. Words of an address are printed as the kernel holds them. */
static int table(const char *path, int family, int left) {
    char line[LINE_BYTES];
    int found = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    while (found < left && fgets(line, sizeof line, file) != NULL) {
        uint32_t words[4] = {0};
        unsigned port = 0;
        unsigned state = 0;
        int fields = family == AF_INET ? sscanf(line, " %*d: %8x:%4x %*x:%*x %2x", &words[0], &port, &state) + 3
                                       : sscanf(line, " %*d: %8x%8x%8x%8x:%4x %*x:%*x %2x", &words[0], &words[1], &words[2],
                                                &words[3], &port, &state);
        if (fields != 6 || state != LISTENING || port == 0) continue;
        if (!put(family, words, port)) break;
        found++;
    }
    fclose(file);
    return found;
}

int applet_ports(char *const *arguments) {
    (void)arguments;
    int four = table("/proc/net/tcp", AF_INET, PORTS_MAX);
    int error = errno;
    int six = table("/proc/net/tcp6", AF_INET6, PORTS_MAX - (four > 0 ? four : 0));
    return four < 0 && six < 0 ? applet_failed(error, NULL) : 0;
}
