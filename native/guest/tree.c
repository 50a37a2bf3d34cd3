#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

enum {
    ROUNDS_MAX = 64, /* after this many rounds a tree that still grows is killed as far as it is known */
    STAT_BYTES = 512,
    STAT_PPID_FIELD = 4,
    STAT_SESSION_FIELD = 6,
    STAT_START_FIELD = 22,
};

#define UNKNOWN_TICK UINT64_MAX

struct process {
    pid_t pid;
    pid_t parent;
    pid_t session;
    uint64_t start_tick;
    bool member;
};

/* What is to be signalled. */
struct scope {
    pid_t root; /* everything below it; the root itself is no part of it */
    struct moment since;
    enum strays strays;
    struct moment strayed_since;
};

struct table {
    struct process *list; /* by pid, ascending */
    size_t count;
    size_t capacity;
};

static uint64_t ticks_now(void) {
    uint64_t tick_ns = NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK);
    return clock_now_ns(CLOCK_BOOTTIME) / tick_ns;
}

/* The last word of /proc/loadavg is the pid that was given out last. */
static pid_t last_pid(void) {
    static int fd = -1;
    if (fd < 0) fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    char text[64];
    ssize_t got = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, 0);
    if (got <= 0) return 0;
    text[got] = '\0';
    const char *word = strrchr(text, ' ');
    return word == NULL ? 0 : (pid_t)strtol(word + 1, NULL, 10);
}

struct moment moment_now(void) {
    return (struct moment){.tick = ticks_now(), .last_pid = last_pid()};
}

/* Start times are in coarse ticks; within the same tick, the pid decides. */
static bool started_after(const struct process *process, struct moment since) {
    if (process->start_tick != UNKNOWN_TICK && process->start_tick != since.tick) return process->start_tick > since.tick;
    return process->pid > since.last_pid;
}

static bool parse_stat(const char *text, struct process *process) {
    const char *at = strrchr(text, ')'); /* the name before it may contain anything */
    if (at == NULL || at[1] != ' ' || at[2] == '\0') return false;
    at += 2;
    for (int field = 3; field < STAT_START_FIELD; field++) {
        at = strchr(at, ' ');
        if (at == NULL) return false;
        at++;
        if (field + 1 == STAT_PPID_FIELD) process->parent = (pid_t)strtol(at, NULL, 10);
        if (field + 1 == STAT_SESSION_FIELD) process->session = (pid_t)strtol(at, NULL, 10);
    }
    process->start_tick = strtoull(at, NULL, 10);
    return true;
}

static bool read_process(int proc_fd, const char *name, struct process *process) {
    char path[32];
    char text[STAT_BYTES];
    size_t length = strlen(name);
    if (length > 10) return false;
    memcpy(path, name, length);
    memcpy(path + length, "/stat", 6);
    int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = '\0';
    *process = (struct process){.pid = (pid_t)strtol(name, NULL, 10)};
    return parse_stat(text, process);
}

static bool append(struct table *table, const struct process *process) {
    if (table->count == table->capacity) {
        size_t capacity = table->capacity == 0 ? 256 : table->capacity * 2;
        struct process *list = realloc(table->list, capacity * sizeof *list);
        if (list == NULL) return false;
        table->list = list;
        table->capacity = capacity;
    }
    table->list[table->count++] = *process;
    return true;
}

static int compare_pids(const void *left, const void *right) {
    pid_t a = ((const struct process *)left)->pid;
    pid_t b = ((const struct process *)right)->pid;
    return (a > b) - (a < b);
}

static struct process *find(const struct table *table, pid_t pid) {
    struct process key = {.pid = pid};
    if (table->count == 0) return NULL;
    return bsearch(&key, table->list, table->count, sizeof key, compare_pids);
}

/* Without a /proc of our own (a container may forbid it) pids are tried one after the other. Then the kernel does
 * not show their parents, only their sessions: the known tree is the processes in the session of its root. */
static bool scan_pids(struct table *table) {
    bool complete = true;
    pid_t last = last_pid();
    for (pid_t pid = 2; complete && pid <= last; pid++) {
        pid_t session = getsid(pid);
        if (session < 0) continue;
        struct process process = {.pid = pid, .parent = session == pid ? 1 : session, .start_tick = UNKNOWN_TICK};
        complete = append(table, &process);
    }
    return complete;
}

static bool scan(struct table *table) {
    *table = (struct table){0};
    DIR *directory = opendir("/proc");
    if (directory == NULL) return false;
    struct dirent *entry;
    struct process process;
    bool complete = true;
    while (complete && (entry = readdir(directory)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        if (read_process(dirfd(directory), entry->d_name, &process)) complete = append(table, &process);
    }
    closedir(directory);
    if (complete && table->count == 0) complete = scan_pids(table);
    if (table->count > 0) qsort(table->list, table->count, sizeof *table->list, compare_pids);
    return complete && table->count > 0;
}

static bool is_stray(const struct process *process, const struct scope *scope) {
    if (scope->strays == STRAYS_NONE || process->parent != getpid()) return false;
    if (!started_after(process, scope->strayed_since)) return false;
    return scope->strays == STRAYS_ALL || process->session == scope->root;
}

static void mark_members(struct table *table, const struct scope *scope) {
    pid_t root = scope->root;
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < table->count; i++) {
            struct process *process = &table->list[i];
            if (process->member || process->pid == root) continue;
            const struct process *parent = find(table, process->parent);
            process->member =
                process->parent == root || (parent != NULL && parent->member) || is_stray(process, scope);
            changed |= process->member;
        }
    }
}

/* Look once: signal the members that the last look did not know. The new look replaces the old one.
 * Returns how many were new, or -1 when /proc cannot be read. */
static int signal_new_members(struct table *known, const struct scope *scope, int number) {
    struct table table;
    if (!scan(&table)) {
        free(table.list);
        return -1;
    }
    mark_members(&table, scope);
    int fresh = 0;
    for (size_t i = 0; i < table.count; i++) {
        struct process *process = &table.list[i];
        /* What looks dead is signalled, too: a process whose first thread has ended may have others that run on. */
        process->member = process->member && started_after(process, scope->since);
        if (!process->member) continue;
        const struct process *before = find(known, process->pid);
        if (before != NULL && before->member && before->start_tick == process->start_tick) continue;
        kill(process->pid, number);
        fresh++;
    }
    free(known->list);
    *known = table;
    return fresh;
}

/* Freezing first keeps a parent from replacing the child that was just killed. A process that has SIGKILL pending
 * cannot finish a fork, so the second look after the killing finds whatever slipped through. */
static bool kill_all(const struct scope *scope) {
    static const int signals[] = {SIGSTOP, SIGKILL};
    for (int phase = 0; phase < 2; phase++) {
        struct table known = {0};
        int fresh = 1;
        for (int round = 0; round < ROUNDS_MAX && fresh > 0; round++) {
            fresh = signal_new_members(&known, scope, signals[phase]);
        }
        free(known.list);
        if (fresh < 0) return false;
    }
    return true;
}

/* When a process was started: within the tick, others that came after it have higher numbers. */
static struct moment birth_of(pid_t pid) {
    char name[16];
    struct process process;
    snprintf(name, sizeof name, "%d", (int)pid);
    int proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool known = proc_fd >= 0 && read_process(proc_fd, name, &process);
    if (proc_fd >= 0) close(proc_fd);
    return known ? (struct moment){.tick = process.start_tick, .last_pid = pid} : (struct moment){.tick = UINT64_MAX};
}

void tree_kill(pid_t root, enum strays strays) {
    struct scope scope = {.root = root, .strays = strays};
    if (strays != STRAYS_NONE) scope.strayed_since = birth_of(root);
    kill(root, SIGSTOP);
    if (!kill_all(&scope)) kill(-root, SIGKILL);
    kill(root, SIGKILL);
}

void tree_kill_since(pid_t root, struct moment since, enum strays strays) {
    kill_all(&(struct scope){.root = root, .since = since, .strays = strays, .strayed_since = since});
}

void tree_kill_own(void) {
    kill_all(&(struct scope){.root = getpid()});
}

void tree_signal(pid_t root, int number) {
    struct table known = {0};
    kill(root, number);
    if (signal_new_members(&known, &(struct scope){.root = root}, number) < 0) kill(-root, number);
    free(known.list);
}
