/* Applets for the content of one file: read, write, append. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet_io.h"
#include "applets.h"
#include "walk.h"

enum { OPEN_MODE = 0644 };

int applet_read(char *const *arguments) {
    uint64_t offset;
    uint64_t length;
    struct stat info;
    if (!parse_number(arguments[1], 10, &offset) || !parse_number(arguments[2], 10, &length) || offset > INT64_MAX) {
        return applet_failed(EINVAL, NULL);
    }
    /* O_NONBLOCK: the open of a FIFO must not wait for a writer. */
    int fd = open(arguments[0], O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return applet_failed(errno == ENXIO ? EINVAL : errno, NULL);
    if (fstat(fd, &info) != 0) return applet_failed(errno, NULL);
    if (S_ISDIR(info.st_mode)) return applet_failed(EISDIR, NULL);
    if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode)) return applet_failed(EINVAL, NULL);
    if (offset > 0 && lseek(fd, (off_t)offset, SEEK_SET) < 0) return applet_failed(errno, NULL);
    return copy(fd, STDOUT_FILENO, length == 0 ? UINT64_MAX : length, NULL) ? 0 : applet_failed(errno, NULL);
}

/* A random, so unused, name in the directory of `path`. False with errno. */
static bool choose_name(const char *path, char temporary[PATH_MAX]) {
    static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyz234567";
    static const char STEM[] = ".dutyfree-";
    const char *slash = strrchr(path, '/');
    size_t directory = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    uint8_t random[10];
    if (directory + sizeof STEM + sizeof random > PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (getrandom(random, sizeof random, GRND_NONBLOCK) < 0) return false;
    memcpy(temporary, path, directory);
    memcpy(temporary + directory, STEM, sizeof STEM - 1);
    char *at = temporary + directory + sizeof STEM - 1;
    for (size_t i = 0; i < sizeof random; i++) *at++ = LETTERS[random[i] % (sizeof LETTERS - 1)];
    *at = '\0';
    return true;
}

static char chosen[PATH_MAX]; /* set by the guest for the applet's process, which it starts next */

char *applet_leftover(char *const *argv) {
    *chosen = '\0';
    if (argv[0] == NULL || strcmp(argv[0], "write") != 0 || argv[1] == NULL) return NULL;
    return choose_name(argv[1], chosen) ? strdup(chosen) : NULL;
}

static bool name_beside(const char *path, char temporary[PATH_MAX]) {
    if (*chosen == '\0') return choose_name(path, temporary);
    memcpy(temporary, chosen, sizeof chosen);
    return true;
}

/* A new file in the directory of `path`; its descriptor, or -1 with errno. Without a name if the file system supports
 * that (`temporary` is empty then), so that a killed write leaves nothing behind. */
static int open_beside(const char *path, char temporary[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    if (length >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(temporary, path, length);
    memcpy(temporary + length, length == 0 ? "." : "", length == 0 ? 2 : 1);
    /* (To be given a name later, a file has to have a path as a descriptor.) */
    bool nameless = access("/proc/self/fd", F_OK) == 0;
    int fd = nameless ? open(temporary, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600) : -1;
    if (!nameless) errno = EOPNOTSUPP;
    *temporary = '\0';
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    if (!name_beside(path, temporary)) return -1;
    return open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* Renames the written file to `path`, which replaces an old file atomically. */
static bool put_in_place(int fd, char temporary[PATH_MAX], const char *path) {
    char descriptor[32];
    if (*temporary == '\0') {
        snprintf(descriptor, sizeof descriptor, "/proc/self/fd/%d", fd);
        if (!name_beside(path, temporary)) return false;
        if (linkat(AT_FDCWD, descriptor, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) != 0) {
            *temporary = '\0';
            return false;
        }
    }
    return close(fd) == 0 && rename(temporary, path) == 0;
}

int applet_write(char *const *arguments) {
    const char *path = arguments[0];
    uint64_t mode;
    struct stat there;
    char temporary[PATH_MAX];
    if (!parse_number(arguments[1], 8, &mode) || mode > 07777) return applet_failed(EINVAL, NULL);
    if (stat(path, &there) == 0 && S_ISDIR(there.st_mode)) return applet_failed(EISDIR, NULL);
    int fd = open_beside(path, temporary);
    if (fd < 0 && errno == ENOENT && make_parents(path)) fd = open_beside(path, temporary);
    if (fd < 0) return applet_failed(errno, NULL);
    if (copy(STDIN_FILENO, fd, UINT64_MAX, NULL) && fchmod(fd, (mode_t)mode) == 0 && put_in_place(fd, temporary, path)) {
        return 0;
    }
    int error = errno;
    if (*temporary != '\0') unlink(temporary);
    return applet_failed(error, NULL);
}

int applet_append(char *const *arguments) {
    int fd = open(arguments[0], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, OPEN_MODE);
    if (fd < 0) return applet_failed(errno == ENXIO ? EINVAL : errno, NULL);
    if (!copy(STDIN_FILENO, fd, UINT64_MAX, NULL) || close(fd) != 0) return applet_failed(errno, NULL);
    return 0;
}
