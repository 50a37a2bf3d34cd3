/* Applets for names: list, stat, mkdir, move, remove. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/fields.h"
#include "applet_io.h"
#include "applets.h"
#include "walk.h"

enum {
    RECORD_MAX_BYTES = NAME_MAX + PATH_MAX + 256,
    RECORDS_BYTES = 64 * 1024,
    DEPTH_MAX = 512,
};

static uint8_t records[RECORDS_BYTES];
static size_t records_used;

static bool records_flush(void) {
    bool written = write_full(STDOUT_FILENO, records, records_used);
    records_used = 0;
    return written;
}

static bool record_put(int directory, const char *path, const char *name) {
    struct stat info;
    if (fstatat(directory, path, &info, AT_SYMLINK_NOFOLLOW) != 0) return false;
    if (sizeof records - records_used < RECORD_MAX_BYTES && !records_flush()) return false;
    uint8_t *at = records + records_used;
    struct field_writer fields;
    fields_write(&fields, at + 4, RECORD_MAX_BYTES - 4);
    fields_put_text(&fields, 1, name);
    fields_put_number(&fields, 2, info.st_mode & S_IFMT);
    fields_put_number(&fields, 3, info.st_mode & 07777);
    fields_put_number(&fields, 4, (uint64_t)info.st_size);
    fields_put_number(&fields, 5, (uint64_t)info.st_mtim.tv_sec * 1000000000 + (uint64_t)info.st_mtim.tv_nsec);
    fields_put_number(&fields, 6, info.st_uid);
    fields_put_number(&fields, 7, info.st_gid);
    if (S_ISLNK(info.st_mode)) {
        char target[PATH_MAX];
        ssize_t length = readlinkat(directory, path, target, sizeof target);
        if (length >= 0) fields_put(&fields, 8, target, (size_t)length);
    }
    store_u32(at, (uint32_t)fields.used);
    records_used += 4 + fields.used;
    return true;
}

static bool is_dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int applet_list(char *const *arguments) {
    DIR *directory = opendir(arguments[0]);
    if (directory == NULL) return applet_failed(errno, NULL);
    struct dirent *entry;
    while (errno = 0, (entry = readdir(directory)) != NULL) {
        if (is_dots(entry->d_name)) continue;
        /* Skip an entry that was removed after readdir. */
        if (!record_put(dirfd(directory), entry->d_name, entry->d_name) && errno != ENOENT) break;
    }
    if (errno != 0 || !records_flush()) return applet_failed(errno, NULL);
    return 0;
}

int applet_stat(char *const *arguments) {
    const char *path = arguments[0];
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL && slash[1] != '\0' ? slash + 1 : path;
    if (strlen(name) > NAME_MAX) name = path + strlen(path) - NAME_MAX;
    return record_put(AT_FDCWD, path, name) && records_flush() ? 0 : applet_failed(errno, NULL);
}

int applet_mkdir(char *const *arguments) {
    const char *path = arguments[0];
    uint64_t mode;
    uint64_t parents;
    struct stat info;
    if (!parse_number(arguments[1], 8, &mode) || mode > 07777 || !parse_number(arguments[2], 10, &parents)) {
        return applet_failed(EINVAL, NULL);
    }
    if (parents != 0 && !make_parents(path)) return applet_failed(errno, NULL);
    if (mkdir(path, (mode_t)mode) == 0) return chmod(path, (mode_t)mode) == 0 ? 0 : applet_failed(errno, NULL);
    int error = errno;
    if (error == EEXIST && parents != 0 && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return 0;
    return applet_failed(error, NULL);
}

int applet_move(char *const *arguments) {
    return rename(arguments[0], arguments[1]) == 0 ? 0 : applet_failed(errno, NULL);
}

/* Removes what is at `name`, a whole tree if it is a directory. */
static bool remove_tree(int parent, const char *name, int depth) {
    if (unlinkat(parent, name, 0) == 0) return true;
    if (errno != EISDIR && errno != EPERM) return false;
    int error = errno;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOTDIR) errno = error;
        return false;
    }
    DIR *directory = depth < DEPTH_MAX ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        if (depth >= DEPTH_MAX) errno = ENAMETOOLONG;
        close(fd);
        return false;
    }
    struct dirent *entry;
    bool removed = true;
    while (removed && (errno = 0, entry = readdir(directory)) != NULL) {
        if (is_dots(entry->d_name)) continue;
        removed = remove_tree(dirfd(directory), entry->d_name, depth + 1) || errno == ENOENT;
    }
    error = errno;
    closedir(directory);
    errno = error;
    return removed && errno == 0 && unlinkat(parent, name, AT_REMOVEDIR) == 0;
}

int applet_remove(char *const *arguments) {
    uint64_t recursive;
    if (!parse_number(arguments[1], 10, &recursive)) return applet_failed(EINVAL, NULL);
    if (recursive != 0) return remove_tree(AT_FDCWD, arguments[0], 0) ? 0 : applet_failed(errno, NULL);
    return remove(arguments[0]) == 0 ? 0 : applet_failed(errno, NULL);
}
