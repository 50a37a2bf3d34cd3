/* Bytes as an archive, put into a scratch directory that must stay the only one that changes. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../guest/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct memory {
    struct tar_source source;
    const uint8_t *next;
    size_t left;
};

static ssize_t read_memory(struct tar_source *source, void *buffer, size_t bytes) {
    struct memory *memory = (struct memory *)source;
    if (bytes > memory->left) bytes = memory->left;
    memcpy(buffer, memory->next, bytes);
    memory->next += bytes;
    memory->left -= bytes;
    return (ssize_t)bytes;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at) {
    (void)info;
    (void)type;
    return at->level == 0 ? 0 : remove(path);
}

static char outer[] = "/tmp/dutyfree-fuzz-XXXXXX";
static char inner[64];

static void make_scratch(void) {
    if (mkdtemp(outer) == NULL) abort();
    snprintf(inner, sizeof inner, "%s/in", outer);
    if (mkdir(inner, 0700) != 0) abort();
}

static void remove_scratch(void) {
    rmdir(inner);
    rmdir(outer);
}

static void check_outer(void) {
    DIR *directory = opendir(outer);
    if (directory == NULL) abort();
    int entries = 0;
    while (readdir(directory) != NULL) entries++;
    closedir(directory);
    if (entries != 3) abort(); /* ".", ".." and "in" */
}

/* A correct checksum cannot be guessed: with an odd first byte the headers get theirs here. */
static void mend(uint8_t *data, size_t size) {
    for (size_t at = 0; at + TAR_BLOCK_BYTES <= size; at += TAR_BLOCK_BYTES) {
        struct tar_header *header = (struct tar_header *)(void *)(data + at);
        unsigned sum = tar_checksum(header);
        snprintf(header->checksum, sizeof header->checksum, "%06o", sum & 0777777);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool ready;
    static char failed[PATH_MAX];
    if (!ready) {
        make_scratch();
        atexit(remove_scratch);
        ready = true;
    }
    if (size < 1) return 0;
    uint8_t *bytes = malloc(size);
    if (bytes == NULL) return 0;
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 1) mend(bytes, size - 1);
    struct memory memory = {.source = {.read = read_memory}, .next = bytes, .left = size - 1};
    int root = open(inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) abort();
    tar_place(&memory.source, root, failed);
    close(root);
    free(bytes);
    check_outer();
    nftw(inner, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    chmod(inner, 0700);
    return 0;
}
