/* The tar format: ustar, pax extensions where they are needed, and (reading) GNU long names. */
#ifndef DUTYFREE_TAR_H
#define DUTYFREE_TAR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    TAR_BLOCK_BYTES = 512,
    TAR_EXTENSION_MAX_BYTES = 64 * 1024, /* of one pax header or GNU long name */
};

/* A header block, as POSIX lays it out. */
struct tar_header {
    char name[100];
    char mode[8];
    char uid[8];
    char gid[8];
    char size[12];
    char mtime[12];
    char checksum[8];
    char type;
    char link[100];
    char magic[6];
    char version[2];
    char user[32];
    char group[32];
    char major[8];
    char minor[8];
    char prefix[155];
    char padding[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK_BYTES, "a header is one block");

unsigned tar_checksum(const struct tar_header *header);

enum tar_kind { TAR_FILE, TAR_DIRECTORY, TAR_SYMLINK, TAR_HARDLINK, TAR_FORBIDDEN };

struct tar_entry {
    enum tar_kind kind;
    mode_t mode; /* permission bits and the sticky bit */
    uint64_t size;
    int64_t mtime_s;
    char name[PATH_MAX];
    char link[PATH_MAX];
};

/* Where an archive comes from. `read` gives up to `bytes`, fewer only at the end; -1 with errno. */
struct tar_source {
    ssize_t (*read)(struct tar_source *source, void *buffer, size_t bytes);
};

/* The next entry, whose content (`size` bytes, padded to a block) the caller then reads: 1. At the end of the
 * archive: 0. -1 with errno, EINVAL for what is not a well-formed archive. */
int tar_next(struct tar_source *source, struct tar_entry *entry);
/* How many bytes of padding follow `size` bytes of content. */
size_t tar_padding(uint64_t size);

/* Put every entry of the archive into the directory. False with errno, and the entry at fault in `failed`. */
bool tar_place(struct tar_source *source, int root, char failed[PATH_MAX]);

/* Write the tree below a directory to `out`. False with errno, and the entry at fault in `failed`. */
bool tar_write(int out, int root, char failed[PATH_MAX]);

#endif
