#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cell.h"

static bool make_cgroup(struct holdings *holdings, const char *path) {
    if (holdings->cgroup_count == MAX_CGROUPS) {
        errno = E2BIG;
        return false;
    }
    if (mkdir(path, 0755) < 0) return false;
    char *copy = strdup(path);
    if (!copy) return false;
    holdings->cgroups[holdings->cgroup_count++] = copy;
    return true;
}

static bool make_scratch(struct holdings *holdings, const char *path) {
    if (holdings->scratch_count == MAX_SCRATCH) {
        errno = E2BIG;
        return false;
    }
    if (mkdir(path, 0755) < 0 && errno != EEXIST) return false;
    char *copy = strdup(path);
    if (!copy) return false;
    holdings->scratch[holdings->scratch_count++] = copy;
    return true;
}

bool holdings_take(struct holdings *holdings, const struct field *field, struct step *step) {
    struct arguments a;
    if (!arguments_of(field, field->tag == OP_SET ? 2 : 1, &a, step)) return false;
    bool done;
    switch (field->tag) {
    case OP_CGROUP: done = make_cgroup(holdings, a.text[0]); break;
    case OP_SET: done = write_file(a.text[0], a.text[1]); break;
    case OP_SCRATCH: done = make_scratch(holdings, a.text[0]); break;
    default: return step_failed(step, field->tag, EPROTO, "unknown operation");
    }
    return done || step_failed(step, field->tag, errno, a.text[0]);
}

bool holdings_drop_cgroups(struct holdings *holdings) {
    while (holdings->cgroup_count > 0) { /* last made, first removed: a child goes before its parent */
        char **last = &holdings->cgroups[holdings->cgroup_count - 1];
        if (rmdir(*last) < 0 && errno == EBUSY) return false;
        free(*last);
        *last = NULL;
        holdings->cgroup_count--;
    }
    return true;
}

/* Removes what is in `directory`; a subdirectory that is not empty is moved up to `top` for a later round, so that
 * neither the depth of a tree nor the length of its paths can defeat us. Nothing is followed. */
static void empty_directory(int directory, int top, unsigned long *changes) {
    DIR *entries = fdopendir(directory);
    if (!entries) {
        close(directory);
        return;
    }
    for (struct dirent *entry; (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        bool changed = unlinkat(dirfd(entries), name, 0) == 0 || unlinkat(dirfd(entries), name, AT_REMOVEDIR) == 0;
        if (!changed && top >= 0) {
            char fresh[32];
            snprintf(fresh, sizeof fresh, ".moved-%lu", *changes);
            changed = renameat(dirfd(entries), name, top, fresh) == 0;
        }
        *changes += changed;
    }
    closedir(entries);
}

static int open_below(int directory, const char *name) {
    return openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void remove_round(const char *path, unsigned long *changes) {
    int top = open_below(AT_FDCWD, path);
    DIR *entries = top >= 0 ? fdopendir(top) : NULL;
    if (!entries) {
        if (top >= 0) close(top);
        return;
    }
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int below = open_below(dirfd(entries), entry->d_name);
        if (below >= 0) empty_directory(below, dirfd(entries), changes);
    }
    rewinddir(entries);
    int copy = open_below(dirfd(entries), ".");
    if (copy >= 0) empty_directory(copy, -1, changes);
    closedir(entries);
}

/* Ends when the tree is gone, or when a round removes nothing. */
static bool remove_tree(const char *path) {
    for (unsigned long changes = 0, before = 0; rmdir(path) < 0 && errno != ENOENT; before = changes) {
        remove_round(path, &changes);
        if (changes == before) return false;
    }
    return true;
}

bool holdings_drop_scratch(const struct holdings *holdings) {
    bool done = true;
    for (int i = 0; i < holdings->scratch_count; i++) done &= remove_tree(holdings->scratch[i]);
    return done;
}

void holdings_free(struct holdings *holdings) {
    for (int i = 0; i < holdings->scratch_count; i++) free(holdings->scratch[i]);
    *holdings = (struct holdings){0};
}
