/* Shared by applets: complete reads and writes, and error reports. */
#ifndef DUTYFREE_APPLET_IO_H
#define DUTYFREE_APPLET_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { COPY_BYTES = 64 * 1024 };

/* Up to `bytes`, fewer only at the end of the input; -1 with errno. */
ssize_t read_full(int fd, void *buffer, size_t bytes);
/* All of it; false with errno. */
bool write_full(int fd, const void *buffer, size_t bytes);
/* Copy at most `bytes`, to the end of the input if there are fewer; `*copied` may be NULL. False with errno. */
bool copy(int from, int to, uint64_t bytes, uint64_t *copied);

/* The errno as an applet's exit code, with its text, after NAME if there is one, on stderr. */
int applet_failed(int error, const char *name);
/* A decimal or octal number and nothing else. */
bool parse_number(const char *text, int base, uint64_t *number);

#endif
