#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NEW_DIRECTORY_MODE = 0755 };

bool make_parents(const char *path) {
    char partial[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof partial) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (size_t i = 1; i < length; i++) {
        if (path[i] != '/' || path[i - 1] == '/') continue;
        memcpy(partial, path, i);
        partial[i] = '\0';
        if (mkdir(partial, NEW_DIRECTORY_MODE) != 0 && errno != EEXIST) return false;
    }
    return true;
}

/* Like the name itself, but without what means nothing: empty parts and single dots. */
static char *next_part(char **rest) {
    while (true) {
        char *part = *rest;
        while (*part == '/') part++;
        if (*part == '\0') return NULL;
        size_t length = strcspn(part, "/");
        *rest = part + length;
        if (**rest == '/') {
            **rest = '\0';
            (*rest)++;
        }
        if (strcmp(part, ".") != 0) return part;
    }
}

static int refuse_symlink(int directory, const char *part) {
    struct stat info;
    int error = errno;
    bool symlink = fstatat(directory, part, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
    errno = symlink ? EPERM : error;
    return -1;
}

static int enter(int directory, const char *part, bool make) {
    static const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(directory, part, flags);
    if (fd < 0 && errno == ENOENT && make) {
        if (mkdirat(directory, part, NEW_DIRECTORY_MODE) != 0 && errno != EEXIST) return -1;
        fd = openat(directory, part, flags);
    }
    return fd >= 0 ? fd : refuse_symlink(directory, part);
}

int walk_to_parent(int root, char *name, bool make, const char **last) {
    if (*name == '/') {
        errno = EPERM;
        return -1;
    }
    char *part = next_part(&name);
    if (part == NULL) {
        errno = EINVAL;
        return -1;
    }
    int directory = fcntl(root, F_DUPFD_CLOEXEC, 3);
    while (directory >= 0) {
        if (strcmp(part, "..") == 0) {
            close(directory);
            errno = EPERM;
            return -1;
        }
        char *following = next_part(&name);
        if (following == NULL) break;
        int next = enter(directory, part, make);
        int error = errno;
        close(directory);
        errno = error;
        directory = next;
        part = following;
    }
    *last = part;
    return directory;
}
