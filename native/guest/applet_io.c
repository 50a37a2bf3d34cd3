#include "applet_io.h"
#include "../common/reason.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t read_full(int fd, void *buffer, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = read(fd, (char *)buffer + done, bytes - done);
        if (got == 0) break;
        if (got < 0 && errno != EINTR) return -1;
        if (got > 0) done += (size_t)got;
    }
    return (ssize_t)done;
}

bool write_full(int fd, const void *buffer, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t written = write(fd, (const char *)buffer + done, bytes - done);
        if (written < 0 && errno != EINTR) return false;
        if (written > 0) done += (size_t)written;
    }
    return true;
}

bool copy(int from, int to, uint64_t bytes, uint64_t *copied) {
    static uint8_t buffer[COPY_BYTES];
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t wanted = bytes - done < sizeof buffer ? bytes - done : sizeof buffer;
        ssize_t got = read(from, buffer, wanted);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        if (got == 0) break;
        if (!write_full(to, buffer, (size_t)got)) return false;
        done += (uint64_t)got;
    }
    if (copied != NULL) *copied = done;
    return true;
}

int applet_failed(int error, const char *name) {
    const char *reason = reason_of(error);
    struct iovec parts[] = {
        {.iov_base = (char *)name, .iov_len = name == NULL ? 0 : strlen(name)},
        {.iov_base = (char *)": ", .iov_len = name == NULL ? 0 : 2},
        {.iov_base = (char *)reason, .iov_len = strlen(reason)},
        {.iov_base = (char *)"\n", .iov_len = 1},
    };
    if (writev(STDERR_FILENO, parts, 4) < 0) return error; /* the exit code has the error, too */
    return error > 0 && error < 256 ? error : EIO;
}

bool parse_number(const char *text, int base, uint64_t *number) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    *number = strtoull(text, &end, base);
    return errno == 0 && *end == '\0';
}
