#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tar.h"
#include "walk.h"

enum {
    DIRECTORIES_MAX_BYTES = 16 << 20, /* of remembered directories; further ones get their mode at once */
    CONTENT_BYTES = 64 * 1024,
};

/* A directory's own mode and time must wait until everything is in it. */
struct directory {
    struct directory *next;
    mode_t mode;
    int64_t mtime_s;
    char name[];
};

struct placing {
    struct tar_source *source;
    int root;
    struct directory *directories; /* the last one first, so that inner ones come before outer ones */
    size_t directories_bytes;
};

static bool fail(int error) {
    errno = error;
    return false;
}

static bool set_times(int fd, int64_t mtime_s) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = mtime_s}};
    return futimens(fd, times) == 0;
}

static bool copy_content(struct tar_source *source, int fd, uint64_t size) {
    static uint8_t buffer[CONTENT_BYTES];
    uint64_t left = size + tar_padding(size);
    uint64_t content = size;
    while (left > 0) {
        size_t wanted = left < sizeof buffer ? (size_t)left : sizeof buffer;
        ssize_t got = source->read(source, buffer, wanted);
        if (got < 0) return false;
        if ((size_t)got != wanted) return fail(EINVAL);
        size_t useful = content < wanted ? (size_t)content : wanted;
        for (size_t done = 0; done < useful;) {
            ssize_t written = write(fd, buffer + done, useful - done);
            if (written < 0 && errno != EINTR) return false;
            if (written > 0) done += (size_t)written;
        }
        content -= useful;
        left -= wanted;
    }
    return true;
}

/* Removes a file in the place of a new entry, unless it is a directory. */
static bool make_way(int parent, const char *name) {
    return unlinkat(parent, name, 0) == 0 || errno == ENOENT;
}

static bool place_file(struct placing *placing, int parent, const char *name, const struct tar_entry *entry) {
    if (!make_way(parent, name)) return false;
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool placed = copy_content(placing->source, fd, entry->size) && fchmod(fd, entry->mode) == 0 &&
                  set_times(fd, entry->mtime_s);
    int error = errno;
    if (close(fd) != 0 && placed) return false;
    errno = error;
    return placed;
}

static bool place_link(struct placing *placing, int parent, const char *name, const struct tar_entry *entry) {
    if (entry->link[0] == '\0') return fail(EINVAL);
    if (entry->kind == TAR_SYMLINK) return make_way(parent, name) && symlinkat(entry->link, parent, name) == 0;
    char target[PATH_MAX];
    const char *target_name;
    struct stat old;
    struct stat new;
    memcpy(target, entry->link, sizeof target);
    int target_parent = walk_to_parent(placing->root, target, false, &target_name);
    if (target_parent < 0) return false;
    bool placed = fstatat(target_parent, target_name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    /* A hard link to itself exists already; removing the old file would remove the target. */
    bool same = placed && fstatat(parent, name, &new, AT_SYMLINK_NOFOLLOW) == 0 && old.st_ino == new.st_ino &&
                old.st_dev == new.st_dev;
    if (placed && !same) {
        placed = make_way(parent, name) && linkat(target_parent, target_name, parent, name, 0) == 0;
    }
    int error = errno;
    close(target_parent);
    errno = error;
    return placed;
}

static bool remember(struct placing *placing, const struct tar_entry *entry) {
    size_t bytes = sizeof(struct directory) + strlen(entry->name) + 1;
    if (placing->directories_bytes + bytes > DIRECTORIES_MAX_BYTES) return false;
    struct directory *directory = malloc(bytes);
    if (directory == NULL) return false;
    *directory = (struct directory){.next = placing->directories, .mode = entry->mode, .mtime_s = entry->mtime_s};
    memcpy(directory->name, entry->name, strlen(entry->name) + 1);
    placing->directories = directory;
    placing->directories_bytes += bytes;
    return true;
}

static bool place_directory(struct placing *placing, int parent, const char *name, const struct tar_entry *entry) {
    struct stat info;
    bool remembered = remember(placing, entry);
    if (mkdirat(parent, name, remembered ? 0700 : entry->mode) == 0) return true;
    if (errno != EEXIST) return false;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode)) return true;
    return make_way(parent, name) && mkdirat(parent, name, 0700) == 0;
}

static bool names_root(const char *name) {
    return name[strspn(name, "./")] == '\0' && strstr(name, "..") == NULL && name[0] != '/';
}

static bool place(struct placing *placing, const struct tar_entry *entry) {
    if (entry->kind == TAR_FORBIDDEN) return fail(EPERM);
    if (names_root(entry->name)) return entry->kind == TAR_DIRECTORY || fail(EINVAL);
    char path[PATH_MAX];
    const char *name;
    memcpy(path, entry->name, sizeof path);
    int parent = walk_to_parent(placing->root, path, true, &name);
    if (parent < 0) return false;
    bool placed = entry->kind == TAR_FILE        ? place_file(placing, parent, name, entry)
                  : entry->kind == TAR_DIRECTORY ? place_directory(placing, parent, name, entry)
                                                 : place_link(placing, parent, name, entry);
    int error = errno;
    close(parent);
    errno = error;
    return placed;
}

static bool finish_directory(int root, struct directory *directory) {
    const char *name;
    int parent = walk_to_parent(root, directory->name, false, &name);
    if (parent < 0) return false;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    close(parent);
    if (fd < 0) return errno == ENOTDIR || errno == ENOENT || errno == ELOOP; /* a later entry took its place */
    bool finished = fchmod(fd, directory->mode) == 0 && set_times(fd, directory->mtime_s);
    close(fd);
    return finished;
}

bool tar_place(struct tar_source *source, int root, char failed[PATH_MAX]) {
    static struct tar_entry entry;
    struct placing placing = {.source = source, .root = root};
    int found;
    bool placed = true;
    failed[0] = '\0';
    while (placed && (found = tar_next(source, &entry)) > 0) placed = place(&placing, &entry);
    if (!placed) memcpy(failed, entry.name, PATH_MAX);
    placed = placed && found == 0;
    int error = errno;
    while (placing.directories != NULL) {
        struct directory *directory = placing.directories;
        placing.directories = directory->next;
        if (!finish_directory(root, directory) && placed) {
            error = errno;
            placed = false;
        }
        free(directory);
    }
    errno = error;
    return placed;
}
