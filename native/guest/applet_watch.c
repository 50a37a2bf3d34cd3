/* The applet `watch`: says what changes in a directory, or in the tree below it, until it is killed.
 *
 * Bounded whatever happens in the tree: so many directories are watched and no more, the kernel's queue of events has
 * its own limit, and output waits for its reader. Whatever is lost by that is said as one record, RECORD_OVERFLOW. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/fields.h"
#include "applet_io.h"
#include "applets.h"

enum {
    DIRECTORIES_MAX = 8192,
    RECORD_BYTES = 2 * PATH_MAX + 256,
    BUFFER_BYTES = 64 * 1024,
    EVENTS_BYTES = 64 * 1024,
    PARTNER_MS = 20, /* how long the first half of a move waits for the second */
};

enum record {
    RECORD_CREATED = 1,
    RECORD_CHANGED = 2,
    RECORD_REMOVED = 3,
    RECORD_MOVED = 4,
    RECORD_ATTRIBUTES = 5,
    RECORD_OVERFLOW = 6,
    RECORD_READY = 7,
};

static const uint32_t EVENTS = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_MODIFY | IN_ATTRIB |
                               IN_EXCL_UNLINK | IN_ONLYDIR;

struct directory { /* that is watched */
    int number;    /* of its watch */
    char *path;    /* from the root of the tree; "" is the root */
};

static struct directory directories[DIRECTORIES_MAX];
static size_t directory_count;
static const char *root;
static bool recursive;
static int queue = -1;
static uint8_t buffer[BUFFER_BYTES];
static size_t buffered;

static struct { /* the first half of a move */
    bool waits;
    bool is_directory;
    uint32_t cookie;
    char path[PATH_MAX];
} leaving;

static bool flush(void) {
    bool written = write_full(STDOUT_FILENO, buffer, buffered);
    buffered = 0;
    return written;
}

static bool say(enum record kind, const char *path, bool is_directory, const char *from) {
    if (sizeof buffer - buffered < RECORD_BYTES && !flush()) return false;
    uint8_t *at = buffer + buffered;
    struct field_writer fields;
    fields_write(&fields, at + 4, RECORD_BYTES - 4);
    fields_put_number(&fields, 1, kind);
    if (path != NULL) fields_put_text(&fields, 2, path);
    if (path != NULL) fields_put_number(&fields, 3, is_directory);
    if (from != NULL) fields_put_text(&fields, 4, from);
    store_u32(at, (uint32_t)fields.used);
    buffered += 4 + fields.used;
    return true;
}

static bool say_overflow(void) {
    return say(RECORD_OVERFLOW, NULL, false, NULL);
}

/* The path of an entry; false if it is too long to be used. */
static bool join(char path[PATH_MAX], const char *directory, const char *name) {
    int length = snprintf(path, PATH_MAX, "%s%s%s", directory, *directory != '\0' ? "/" : "", name);
    return length > 0 && length < PATH_MAX - 2;
}

static struct directory *find(int number) {
    static size_t last; /* events come in runs */
    if (last < directory_count && directories[last].number == number) return &directories[last];
    for (size_t i = 0; i < directory_count; i++) {
        if (directories[i].number == number) {
            last = i;
            return &directories[i];
        }
    }
    return NULL;
}

static void forget(struct directory *directory) {
    free(directory->path);
    *directory = directories[--directory_count];
}

/* Where the directory at `path` is. By name, not from an open root: a directory that is held does not say its end. */
static const char *place_of(const char *path) {
    static char place[2 * PATH_MAX]; /* the kernel refuses what is too long */
    snprintf(place, sizeof place, "%s/%s", root, path);
    return place;
}

/* Watch one more directory; false only if the output has ended. */
static bool watch(const char *path) {
    if (directory_count == DIRECTORIES_MAX) return say_overflow();
    int number = inotify_add_watch(queue, place_of(path), EVENTS | IN_DONT_FOLLOW);
    if (number < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || say_overflow();
    char *copy = strdup(path);
    struct directory *known = find(number);
    if (copy == NULL) return say_overflow();
    if (known != NULL) { /* seen under another name before */
        free(known->path);
        known->path = copy;
    } else {
        directories[directory_count++] = (struct directory){.number = number, .path = copy};
    }
    return true;
}

static bool is_directory_at(DIR *listing, const struct dirent *entry) {
    if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    struct stat info;
    return fstatat(dirfd(listing), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

/* What is in a directory already: watch the directories, and say everything if `news`. */
static bool look_into(const char *path, bool news) {
    char inner[PATH_MAX];
    DIR *listing = opendir(place_of(path));
    if (listing == NULL) return errno == ENOENT || errno == ENOTDIR || say_overflow();
    bool said = true;
    struct dirent *entry;
    while (said && (entry = readdir(listing)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        bool is_directory = is_directory_at(listing, entry);
        if (!join(inner, path, entry->d_name)) said = say_overflow();
        else {
            if (news) said = say(RECORD_CREATED, inner, is_directory, NULL);
            if (said && is_directory) said = watch(inner);
        }
    }
    closedir(listing);
    return said;
}

/* Watch the directory at `path` and all below it. The watch comes before the look, so that nothing is between them;
 * what appears meanwhile may be said twice. No recursion: the table is the list of what is left to do. */
static bool watch_tree(const char *path, bool news) {
    size_t next = directory_count;
    if (!watch(path)) return false;
    for (; next < directory_count; next++) {
        char copy[PATH_MAX];
        snprintf(copy, sizeof copy, "%s", directories[next].path);
        if (!look_into(copy, news)) return false;
    }
    return true;
}

/* Whether `path` is `top` or below it. */
static bool is_below(const char *path, const char *top) {
    size_t length = strlen(top);
    return strncmp(path, top, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static void leave_tree(const char *top) {
    for (size_t i = directory_count; i-- > 0;) {
        if (!is_below(directories[i].path, top)) continue;
        inotify_rm_watch(queue, directories[i].number);
        forget(&directories[i]);
    }
}

static bool rename_tree(const char *from, const char *to) {
    for (size_t i = 0; i < directory_count; i++) {
        if (!is_below(directories[i].path, from)) continue;
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%s%s", to, directories[i].path + strlen(from));
        char *copy = length < (int)sizeof path - 2 ? strdup(path) : NULL;
        if (copy == NULL) return say_overflow();
        free(directories[i].path);
        directories[i].path = copy;
    }
    return true;
}

/* The second half of a move did not come: it went out of the tree. */
static bool has_left(void) {
    if (!leaving.waits) return true;
    leaving.waits = false;
    if (leaving.is_directory) leave_tree(leaving.path);
    return say(RECORD_REMOVED, leaving.path, leaving.is_directory, NULL);
}

static bool has_come(const char *path, bool is_directory, uint32_t cookie) {
    if (leaving.waits && leaving.cookie == cookie) {
        leaving.waits = false;
        return say(RECORD_MOVED, path, is_directory, leaving.path) &&
               (!is_directory || rename_tree(leaving.path, path));
    }
    return has_left() && say(RECORD_CREATED, path, is_directory, NULL) &&
           (!is_directory || !recursive || watch_tree(path, true));
}

static bool begin(void) {
    if (queue >= 0) close(queue);
    while (directory_count > 0) forget(&directories[directory_count - 1]);
    leaving.waits = false;
    queue = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (queue < 0) return false;
    int number = inotify_add_watch(queue, root, EVENTS | IN_DELETE_SELF | IN_MOVE_SELF);
    char *path = number < 0 ? NULL : strdup("");
    if (path == NULL) return false;
    directories[directory_count++] = (struct directory){.number = number, .path = path};
    for (size_t next = 0; recursive && next < directory_count; next++) {
        char copy[PATH_MAX];
        snprintf(copy, sizeof copy, "%s", directories[next].path);
        if (!look_into(copy, false)) return false;
    }
    return true;
}

static bool handle(const struct inotify_event *event, const struct directory *directory) {
    char path[PATH_MAX];
    bool is_directory = (event->mask & IN_ISDIR) != 0;
    if (event->len == 0) return true;
    if (!join(path, directory->path, event->name)) return say_overflow();
    if (event->mask & IN_MOVED_TO) return has_come(path, is_directory, event->cookie);
    if (!has_left()) return false;
    if (event->mask & IN_MOVED_FROM) {
        leaving.waits = true;
        leaving.is_directory = is_directory;
        leaving.cookie = event->cookie;
        memcpy(leaving.path, path, sizeof path);
        return true;
    }
    if (event->mask & IN_CREATE)
        return say(RECORD_CREATED, path, is_directory, NULL) &&
               (!is_directory || !recursive || watch_tree(path, true));
    if (event->mask & IN_DELETE) return say(RECORD_REMOVED, path, is_directory, NULL);
    if (event->mask & IN_MODIFY) return say(RECORD_CHANGED, path, is_directory, NULL);
    if (event->mask & IN_ATTRIB) return say(RECORD_ATTRIBUTES, path, is_directory, NULL);
    return true;
}

/* 0 to go on, or the errno that the applet ends with. */
static int take(const struct inotify_event *event) {
    if (event->mask & IN_Q_OVERFLOW) { /* new directories may be among what was lost: look at all of them again */
        return say_overflow() && begin() ? 0 : errno;
    }
    struct directory *directory = find(event->wd);
    if (directory == NULL) return 0;
    if (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) {
        if (*directory->path == '\0') return ENOENT;
        if (event->mask & IN_IGNORED) forget(directory);
        return 0;
    }
    return handle(event, directory) ? 0 : errno;
}

/* The events that are there, at most one buffer full; 0, or an errno. */
static int take_events(void) {
    static _Alignas(struct inotify_event) char events[EVENTS_BYTES];
    ssize_t got = read(queue, events, sizeof events);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : errno;
    int read_from = queue;
    for (ssize_t at = 0; at < got;) {
        const struct inotify_event *event = (const struct inotify_event *)(const void *)(events + at);
        int error = take(event);
        if (error != 0) return error;
        if (queue != read_from) break; /* begun anew: the rest is of the old queue */
        at += (ssize_t)(sizeof *event + event->len);
    }
    return 0;
}

int applet_watch(char *const *arguments) {
    uint64_t wants_tree;
    if (!parse_number(arguments[1], 10, &wants_tree) || wants_tree > 1) return applet_failed(EINVAL, NULL);
    recursive = wants_tree != 0;
    root = arguments[0];
    if (!begin()) return applet_failed(errno, NULL);
    int error = say(RECORD_READY, NULL, false, NULL) && flush() ? 0 : errno;
    while (error == 0) {
        struct pollfd source = {.fd = queue, .events = POLLIN};
        int ready = poll(&source, 1, leaving.waits ? PARTNER_MS : -1);
        if (ready < 0 && errno != EINTR) error = errno;
        if (ready == 0 && !has_left()) error = errno;
        if (ready > 0) error = take_events();
        if (!flush() && error == 0) error = errno;
    }
    return applet_failed(error, NULL);
}
