/* dutyfree-spawner --survey: lists the directories and files of the host that a cell's root may edit.
 *
 * What to list comes from the host process, on stdin; editable.py says what it means. A program of its own because a walk
 * of two thousand directories takes Python twice as long, and holds its lock meanwhile. It only reads. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spawner.h"

enum { MAX_REQUEST = 1024 * 1024, MAX_LIST = 4096, SLOTS = 1 << 18 }; /* more slots than there can be entries */

struct list {
    char *items[MAX_LIST];
    size_t count;
};

struct waiting { /* a directory that is to be looked at */
    char *path;
    uint64_t level;
    struct waiting *next;
};

static char request[MAX_REQUEST];
static size_t request_length, at;
static struct list hidden, replaced_only, state, parts_copied;
static uint64_t left_entries, left_bytes, most_file_bytes, most_state_bytes, left_copies;
static char *seen[SLOTS]; /* directories that were listed, and files */

static _Noreturn void give_up(const char *why) {
    dprintf(STDERR_FILENO, "dutyfree-spawner: survey: %s\n", why);
    exit(1);
}

static char *next_text(void) {
    if (at >= request_length) give_up("malformed request");
    char *text = request + at;
    at += strlen(text) + 1;
    return text;
}

static uint64_t next_number(void) { return number_of(next_text()); }

static void next_list(struct list *list) {
    uint64_t count = next_number();
    if (count > MAX_LIST) give_up("too many paths");
    for (list->count = 0; list->count < count;) list->items[list->count++] = next_text();
}

static bool is_in(const struct list *list, const char *path) {
    for (size_t i = 0; i < list->count; i++)
        if (!strcmp(list->items[i], path)) return true;
    return false;
}

static bool begins_with(const struct list *list, const char *path) {
    for (size_t i = 0; i < list->count; i++)
        if (!strncmp(list->items[i], path, strlen(list->items[i]))) return true;
    return false;
}

/* Where a path is in `seen`, or where it would be. */
static char **slot_of(const char *path) {
    uint64_t hash = 14695981039346656037U;
    for (const char *c = path; *c; c++) hash = (hash ^ (uint8_t)*c) * 1099511628211U;
    size_t slot = hash % SLOTS;
    while (seen[slot] && strcmp(seen[slot], path)) slot = (slot + 1) % SLOTS;
    return &seen[slot];
}

static char *joined(const char *directory, const char *name) {
    char *path = malloc(strlen(directory) + strlen(name) + 2);
    if (!path) give_up("no memory");
    sprintf(path, "%s/%s", directory, name);
    return path;
}

static void list(char kind, const struct stat *found, mode_t mode, char *path, char **slot) {
    *slot = path;
    printf("%c%c%o%c%u%c%s%c", kind, 0, mode, 0, found->st_uid, 0, path, 0);
}

/* Whether every user may read a directory; it is then listed. Mounts below the tree are left out: they may be slow. */
static bool is_open(char *path, const dev_t *device) {
    struct stat found;
    char **slot = slot_of(path);
    if (!*path || *slot) return true;
    if (is_in(&hidden, path) || lstat(path, &found) < 0) return false;
    if (!S_ISDIR(found.st_mode) || (found.st_mode & 05) != 05 || (device && *device != found.st_dev)) return false;
    list('D', &found, found.st_mode & 07777, path, slot);
    return true;
}

static void take_file(int directory, const char *name, char *path) {
    struct stat found;
    char **slot = slot_of(path);
    if (*slot || is_in(&hidden, path) || fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) < 0) return;
    uint64_t most = is_in(&state, path) ? most_state_bytes : most_file_bytes, size = (uint64_t)found.st_size;
    if (!S_ISREG(found.st_mode) || !(found.st_mode & S_IROTH) || size > most || size > left_bytes) return;
    left_bytes -= size;
    left_copies--;
    list('F', &found, found.st_mode & 0777, path, slot);
}

static int by_path(const void *one, const void *other) { return strcmp(*(char *const *)one, *(char *const *)other); }

/* List the files of a directory; its directories, sorted, wait for their turn. */
static struct waiting **scan(const char *path, bool copied, uint64_t level, struct waiting **end) {
    DIR *directory = opendir(path);
    if (!directory) return end; /* it was removed meanwhile */
    char **below = NULL;
    size_t count = 0, room = 0;
    for (struct dirent *entry; left_entries && (entry = readdir(directory));) {
        struct stat found = {0};
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        left_entries--;
        unsigned char type = entry->d_type;
        if (type == DT_UNKNOWN && fstatat(dirfd(directory), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0)
            type = S_ISDIR(found.st_mode) ? DT_DIR : S_ISREG(found.st_mode) ? DT_REG : DT_UNKNOWN;
        if (type == DT_DIR && level > 1) {
            if (count == room && !(below = realloc(below, (room = room * 2 + 16) * sizeof *below))) give_up("no memory");
            below[count++] = joined(path, entry->d_name);
        } else if (type == DT_REG && copied && left_copies) {
            take_file(dirfd(directory), entry->d_name, joined(path, entry->d_name));
        }
    }
    closedir(directory);
    if (count) qsort(below, count, sizeof *below, by_path);
    for (size_t i = 0; i < count; i++, end = &(*end)->next) {
        if (!(*end = calloc(1, sizeof **end))) give_up("no memory");
        **end = (struct waiting){.path = below[i], .level = level - 1};
    }
    free(below);
    return end;
}

static void walk(char *tree, uint64_t levels, uint64_t directories, uint64_t copies) {
    struct waiting first = {.path = tree, .level = levels}, **end = &first.next;
    struct stat top;
    char *parent = strdup(tree);
    if (!parent) give_up("no memory");
    *strrchr(parent, '/') = 0;
    if (!is_open(parent, NULL) || !is_open(tree, NULL) || lstat(tree, &top) < 0) return;
    left_copies = copies;
    for (struct waiting *now = &first; now && directories; now = now->next) {
        if (!is_open(now->path, &top.st_dev)) continue;
        directories--;
        bool copied = left_copies && begins_with(&parts_copied, now->path) && !begins_with(&replaced_only, now->path);
        if (now->level > 1 || copied) end = scan(now->path, copied, now->level, end);
    }
}

/* The request, each text ended by a NUL: the bounds, lists, and trees. The answer: D or F, mode, owner, path. Memory is given
 * back by the end of the process. */
_Noreturn void survey(void) {
    static char answer[1 << 18];
    (void)setvbuf(stdout, answer, _IOFBF, sizeof answer);
    for (ssize_t got; (got = read(STDIN_FILENO, request + request_length, sizeof request - 1 - request_length)) != 0;) {
        if (got < 0) give_up("no request");
        request_length += (size_t)got;
    }
    if (request_length == sizeof request - 1) give_up("the request is too long");
    left_entries = next_number();
    if (left_entries > SLOTS / 2) give_up("too many entries");
    left_bytes = next_number();
    most_file_bytes = next_number();
    most_state_bytes = next_number();
    next_list(&hidden);
    next_list(&replaced_only);
    next_list(&state);
    while (at < request_length) {
        char *tree = next_text();
        uint64_t levels = next_number(), directories = next_number(), copies = next_number();
        next_list(&parts_copied);
        if (*tree != '/') give_up("a tree is not absolute");
        walk(tree, levels, directories, copies);
    }
    _exit(fflush(stdout) == 0 ? 0 : 1); /* not `return`: a sanitizer would look for memory that was not given back */
}
