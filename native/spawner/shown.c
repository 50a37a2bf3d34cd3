/* Directories and files of the host that a cell sees because its caller asked for them: read-only, without set-id files
 * and devices, and without what is mounted below them; and caches.
 *
 * A directory is seen through an overlay of its own, not as it is: an overlay has inodes of its own, so that nothing in
 * a cell can connect to a socket, write to a pipe or take a lock that a process outside has, too. */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

static int trees[MAX_TREES], tree_count;

void trees_note(const int *given, int count) {
    if (count > MAX_TREES) count = MAX_TREES;
    memcpy(trees, given, (size_t)count * sizeof *trees);
    tree_count = count;
}

int trees_given(const int **given) {
    *given = trees;
    return tree_count;
}

static int close_with(int file, int error) {
    if (file >= 0) close(file);
    errno = error;
    return -1;
}

/* Between the host's look at the source and ours, a user may have put another file there. */
static int find_tree(const char *path, const char *identity) {
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int found = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (found < 0) return -1;
    struct stat info;
    char text[48];
    if (fstat(found, &info) < 0) return close_with(found, errno);
    snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)info.st_dev, (unsigned long long)info.st_ino);
    if (strcmp(text, identity) != 0) return close_with(found, ESTALE);
    int tree = (int)syscall(SYS_open_tree, found, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    int error = errno;
    close(found);
    errno = error;
    return tree;
}

static int make_in(int directory, const char *name, bool is_directory, uid_t owner) {
    bool made = is_directory ? mkdirat(directory, name, 0755) == 0 : mknodat(directory, name, S_IFREG | 0644, 0) == 0;
    if (!made && errno != EEXIST) return -1;
    if (made && fchownat(directory, name, owner, owner, AT_SYMLINK_NOFOLLOW) < 0) return -1;
    return openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_kind(int file, bool is_directory) {
    struct stat info;
    if (fstat(file, &info) < 0) return false;
    if (S_ISLNK(info.st_mode)) errno = ELOOP;
    else if (is_directory) errno = ENOTDIR;
    else errno = S_ISDIR(info.st_mode) ? EISDIR : EEXIST;
    return is_directory ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode);
}

/* The place below NEW where something is to be seen, made if it is not there. A hostile image may have put links, pipes
 * or files on the way: no link is followed, and what is there is never opened. */
static int make_target(const char *path, bool is_directory, uid_t owner) {
    char copy[MAX_TARGET];
    if (strlen(path) >= sizeof copy) return close_with(-1, ENAMETOOLONG);
    strcpy(copy, path);
    int at = open(NEW, O_PATH | O_DIRECTORY | O_CLOEXEC);
    char *rest = NULL;
    for (char *name = strtok_r(copy, "/", &rest), *next; at >= 0 && name; name = next) {
        next = strtok_r(NULL, "/", &rest);
        bool wanted = next || is_directory;
        if (!strcmp(name, "..")) return close_with(at, EINVAL);
        int below = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0 && errno == ENOENT) below = make_in(at, name, wanted, owner);
        int error = errno;
        close(at);
        errno = error;
        at = below;
        if (at >= 0 && !is_kind(at, wanted)) return close_with(at, errno);
    }
    return at;
}

static bool show_directory(int tree, const char *number, int target, const char *options) {
    char below[32], path[32];
    snprintf(below, sizeof below, "/shown/%s", number);
    snprintf(path, sizeof path, "/proc/self/fd/%d", target);
    return syscall(SYS_move_mount, tree, "", AT_FDCWD, below, MOVE_MOUNT_F_EMPTY_PATH) == 0 &&
           mount("overlay", path, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options) == 0;
}

/* number, source (empty: the tree of that number which came with the request), identity, directory, target, options */
bool show_source(const struct arguments *a, uid_t owner) {
    uint64_t number = number_of(a->text[0]);
    bool is_directory = number_of(a->text[3]) != 0, given = !*a->text[1];
    struct mount_attr wanted = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
                                .propagation = MS_PRIVATE};
    errno = EPROTO;
    int tree = !given ? find_tree(a->text[1], a->text[2]) : number < (uint64_t)tree_count ? trees[number] : -1;
    if (tree < 0) return false;
    int target = -1;
    bool done = syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &wanted, sizeof wanted) == 0 &&
                (target = make_target(a->text[4], is_directory, owner)) >= 0 &&
                (is_directory ? show_directory(tree, a->text[0], target, a->text[5])
                              : syscall(SYS_move_mount, tree, "", target, "",
                                        MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0);
    int error = errno;
    if (target >= 0) close(target);
    close(tree);
    errno = error;
    return done;
}

/* target, options: an overlay that the cell writes to, below NEW; set-id files in it give no rights */
bool show_overlay(const struct arguments *a, uid_t owner) {
    int target = make_target(a->text[0], true, owner);
    if (target < 0) return false;
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", target);
    bool done = mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, a->text[1]) == 0;
    int error = errno;
    close(target);
    errno = error;
    return done;
}
