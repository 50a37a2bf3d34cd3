/* Operations: each is one or two system calls, done exactly as the host planned them. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "spawner.h"

bool step_failed(struct step *step, uint8_t operation, int error, const char *detail) {
    *step = (struct step){.operation = operation, .error = error};
    strncpy(step->detail, detail, sizeof step->detail - 1);
    return false;
}

uint64_t number_of(const char *text) { return strtoull(text, NULL, 10); }

int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int by_value(const void *one, const void *other) {
    int a = *(const int *)one, b = *(const int *)other;
    return (a > b) - (a < b);
}

void close_all_but(int *kept, size_t count) {
    unsigned from = 3;
    if (count) qsort(kept, count, sizeof *kept, by_value);
    for (size_t i = 0; i < count; i++) {
        if (kept[i] < (int)from) continue;
        if (kept[i] > (int)from) (void)syscall(SYS_close_range, from, (unsigned)kept[i] - 1, 0);
        from = (unsigned)kept[i] + 1;
    }
    (void)syscall(SYS_close_range, from, ~0U, 0);
}

/* Of the cell whose first process we are: its root's id, and whether files on disk have other ids. */
static uint64_t own_root;
static bool own_ids;

void operations_belong_to(uint64_t root, bool differ) {
    own_root = root;
    own_ids = differ;
}

static uid_t owner_of(const char *text) { return (uid_t)(strcmp(text, "cell") ? number_of(text) : own_root); }

static mode_t octal_of(const char *text) { return (mode_t)strtoul(text, NULL, 8); }

/* Points into the field: its bytes must be exactly `count` strings, each ended by a NUL. */
bool arguments_of(const struct field *field, int count, struct arguments *arguments, struct step *step) {
    const char *at = (const char *)field->data, *end = at + field->length;
    arguments->count = 0;
    while (at < end && arguments->count < count) {
        const char *stop = memchr(at, 0, (size_t)(end - at));
        if (!stop) break;
        arguments->text[arguments->count++] = at;
        at = stop + 1;
    }
    if (at != end || arguments->count != count) return step_failed(step, field->tag, EPROTO, "malformed arguments");
    return true;
}

bool write_file(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    size_t length = strlen(text);
    bool done = write(file, text, length) == (ssize_t)length;
    int error = errno;
    close(file);
    errno = error;
    return done;
}

static bool make_directory(const struct arguments *a) {
    uid_t owner = owner_of(a->text[2]);
    mode_t mode = octal_of(a->text[1]);
    bool there = mkdir(a->text[0], mode) < 0;
    if (there && errno != EEXIST) return false;
    if (owner != 0 && lchown(a->text[0], owner, owner) < 0) return false;
    return (!there && mode <= 0777) || chmod(a->text[0], mode) == 0; /* mkdir knows no more than these */
}

/* The directory that a file is in. What leads there may be a hostile image's: the links of /proc are not followed, which
 * would lead out of its root. */
static int open_parent(const char *path, const char **name) {
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) >= sizeof directory) {
        errno = EINVAL;
        return -1;
    }
    memcpy(directory, path, (size_t)(slash - path));
    directory[slash - path] = 0;
    *name = slash + 1;
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, *directory ? directory : "/", &how, sizeof how);
}

static bool make_file_in(int directory, const char *name, const struct arguments *a) {
    uid_t owner = owner_of(a->text[2]);
    int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, octal_of(a->text[1]));
    if (file < 0) return false;
    size_t length = strlen(a->text[3]);
    bool done = write(file, a->text[3], length) == (ssize_t)length && fchown(file, owner, owner) == 0;
    int error = errno;
    close(file);
    if (!done) (void)unlinkat(directory, name, 0);
    errno = error;
    return done;
}

static bool make_file(const struct arguments *a, bool replace) {
    const char *name;
    int directory = open_parent(a->text[0], &name);
    if (directory < 0) return false;
    if (replace) (void)unlinkat(directory, name, 0); /* the existing file may be a symlink, or another user's */
    bool done = make_file_in(directory, name, a);
    int error = errno;
    close(directory);
    errno = error;
    return done;
}

/* Skips files that are now private or no regular files: the spawner can read files that a cell must not. */
static bool copy_content(int source, const struct arguments *a) {
    struct stat found;
    uid_t owner = (uid_t)number_of(a->text[3]);
    if (fstat(source, &found) < 0 || !S_ISREG(found.st_mode) || !(found.st_mode & S_IROTH)) return false;
    if (found.st_size > MAX_COPY) return false;
    int target = open(a->text[1], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, octal_of(a->text[2]));
    if (target < 0) return false;
    off_t left = found.st_size;
    ssize_t sent = 1;
    while (left > 0 && (sent = sendfile(target, source, NULL, (size_t)left)) > 0) left -= sent;
    struct timespec times[2] = {found.st_atim, found.st_mtim};
    bool done = sent >= 0 && fchown(target, owner, owner) == 0 && futimens(target, times) == 0;
    close(target);
    if (!done) (void)unlink(a->text[1]);
    return done;
}

/* Files of our own have the same time in every process, so that sandboxes of two of them look alike. */
static bool forget_times(const char *path) {
    static const struct timespec none[2];
    return utimensat(AT_FDCWD, path, none, AT_SYMLINK_NOFOLLOW) == 0;
}

static void copy_file(const struct arguments *a) {
    struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int source = (int)syscall(SYS_openat2, AT_FDCWD, a->text[0], &how, sizeof how);
    if (source < 0) return; /* another user may have put a symlink there, or in place of a directory */
    (void)copy_content(source, a);
    close(source);
}

static bool make_node(const struct arguments *a) {
    mode_t mode = octal_of(a->text[1]);
    dev_t device = makedev((unsigned)number_of(a->text[3]), (unsigned)number_of(a->text[4]));
    uid_t owner = owner_of(a->text[2]);
    if (mknod(a->text[0], mode, device) < 0) return false;
    if (owner != 0 && lchown(a->text[0], owner, owner) < 0) return false;
    return (mode & S_IFMT) == S_IFCHR && device == 0 ? true : chmod(a->text[0], mode & 07777) == 0;
}

static bool do_mount(const struct arguments *a) {
    const char *type = *a->text[2] ? a->text[2] : NULL, *options = *a->text[4] ? a->text[4] : NULL, *target = a->text[1];
    char beneath[32];
    int place = -1;
    if (!strncmp(target, NEW "/", sizeof NEW)) { /* an image may have put links on the way there */
        struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
        place = (int)syscall(SYS_openat2, AT_FDCWD, target, &how, sizeof how);
        if (place < 0) return false;
        snprintf(beneath, sizeof beneath, "/proc/self/fd/%d", place);
        target = beneath;
    }
    bool done = mount(a->text[0], target, type, (unsigned long)number_of(a->text[3]), options) == 0;
    int error = errno;
    if (place >= 0) close(place);
    errno = error;
    return done;
}

/* Users of the host may own directories on the way to the source, and put links there. */
static bool bind_tree(const char *source, const char *target, bool recursive) {
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int tree = (int)syscall(SYS_openat2, AT_FDCWD, source, &how, sizeof how);
    if (tree < 0) return false;
    char path[32], flags[24];
    snprintf(path, sizeof path, "/proc/self/fd/%d", tree);
    snprintf(flags, sizeof flags, "%lu", (unsigned long)(recursive ? MS_BIND | MS_REC : MS_BIND));
    struct arguments bind = {.text = {path, target, "", flags, ""}, .count = 5};
    bool done = do_mount(&bind);
    int error = errno;
    close(tree);
    errno = error;
    return done;
}

static bool show(const struct arguments *a) {
    return bind_tree(a->text[0], a->text[1], true) || errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
}

static bool take_part(const struct arguments *a) {
    bool directory = number_of(a->text[3]) != 0; /* the plan says it: asking a network file system could block */
    bool there = directory ? mkdir(a->text[1], 0755) == 0 : mknod(a->text[1], S_IFREG | 0644, 0) == 0;
    return (there || errno == EEXIST) && bind_tree(a->text[0], a->text[1], number_of(a->text[2]) != 0);
}

static bool overlay_part(const struct arguments *a) {
    char flags[24];
    snprintf(flags, sizeof flags, "%lu", (unsigned long)MS_NODEV);
    struct arguments part = {.text = {"overlay", a->text[0], "overlay", flags, a->text[1]}, .count = 5};
    if (do_mount(&part)) return true;
    part.text[4] = a->text[2];
    return errno == ENOENT && do_mount(&part);
}

static bool translate(const char *path) {
    if (!own_ids) return true;
    int tree = ids_translate(path, IDS_FD);
    if (tree < 0) return false;
    bool done = syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) == 0;
    int error = errno;
    close(tree);
    errno = error;
    return done;
}

static bool try_translation(const struct arguments *a) {
    struct ids ids = {number_of(a->text[1]), number_of(a->text[2]), number_of(a->text[3])};
    int namespace = ids_namespace(&ids), tree = namespace < 0 ? -1 : ids_translate(a->text[0], namespace);
    if (tree >= 0) close(tree);
    return tree >= 0;
}

static bool make_read_only(const char *directory) {
    struct mount_attr wanted = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    return syscall(SYS_mount_setattr, AT_FDCWD, directory, AT_RECURSIVE, &wanted, sizeof wanted) == 0;
}

static bool change_root(const char *directory) {
    /* Both roots on one mount point: the old one then lies on top and is let go with everything below it. */
    return chdir(directory) == 0 && syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0 &&
           chdir("/") == 0;
}

bool operation_do(const struct field *field, struct step *step) {
    static const struct {
        uint8_t operation;
        int arguments, named; /* how many, and which one stands in an error */
    } shapes[] = {{OP_MKDIR, 3, 0}, {OP_SYMLINK, 2, 1}, {OP_WRITE, 4, 0},    {OP_MKNOD, 5, 0},    {OP_XATTR, 3, 0},
                  {OP_MOUNT, 5, 1}, {OP_ROOT, 1, 0},    {OP_HOSTNAME, 1, 0}, {OP_CGROUP_NS, 0, 0},
                  {OP_READ_ONLY, 1, 0}, {OP_ENSURE, 5, 0},  {OP_COPY, 4, 1},     {OP_UNMOUNT, 1, 0},  {OP_SHOW, 2, 1},
                  {OP_IDMAP, 1, 0}, {OP_TRY_IDMAP, 4, 0}, {OP_PART, 3, 0},
                  {OP_TAKE, 4, 0}, {OP_SOURCE, 6, 4}, {OP_OVERLAY, 2, 0}};
    size_t shape = 0;
    while (shape < sizeof shapes / sizeof *shapes && shapes[shape].operation != field->tag) shape++;
    if (shape == sizeof shapes / sizeof *shapes) return step_failed(step, field->tag, EPROTO, "unknown operation");
    struct arguments a;
    if (!arguments_of(field, shapes[shape].arguments, &a, step)) return false;
    bool done = false;
    switch (field->tag) {
    case OP_MKDIR: done = make_directory(&a); break;
    case OP_SYMLINK: done = symlink(a.text[0], a.text[1]) == 0; break;
    case OP_WRITE: done = make_file(&a, true) && forget_times(a.text[0]); break;
    case OP_MKNOD: done = make_node(&a); break;
    case OP_XATTR: done = lsetxattr(a.text[0], a.text[1], a.text[2], strlen(a.text[2]), 0) == 0; break;
    case OP_MOUNT: done = do_mount(&a); break;
    case OP_ROOT: done = change_root(a.text[0]); break;
    case OP_HOSTNAME: done = sethostname(a.text[0], strlen(a.text[0])) == 0; break;
    case OP_READ_ONLY: done = make_read_only(a.text[0]); break;
    case OP_ENSURE: (void)make_file(&a, number_of(a.text[4]) != 0), done = true; break;
    case OP_COPY: copy_file(&a), done = true; break;
    case OP_UNMOUNT: done = umount2(a.text[0], MNT_DETACH | UMOUNT_NOFOLLOW) == 0; break;
    case OP_SHOW: done = show(&a); break;
    case OP_TAKE: done = take_part(&a); break;
    case OP_SOURCE: done = show_source(&a, owner_of("cell")); break;
    case OP_OVERLAY: done = show_overlay(&a, owner_of("cell")); break;
    case OP_PART: done = overlay_part(&a); break;
    case OP_IDMAP: done = translate(a.text[0]); break;
    case OP_TRY_IDMAP: done = try_translation(&a); break;
    case OP_CGROUP_NS: done = unshare(CLONE_NEWCGROUP) == 0; break;
    }
    return done || step_failed(step, field->tag, errno, a.count ? a.text[shapes[shape].named] : "");
}
