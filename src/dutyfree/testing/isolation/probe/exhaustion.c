/* Exhausts resources. Each probe stops at a limit of its own, in case that no limit of the sandbox stops it. */
#include "probe.h"

#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { MIB = 1024 * 1024, BLOCK = 64 * 1024, MOST_FORKS = 20000, HOLD_S = 30 };

static _Noreturn void report_count(long count)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", count);
    value(text);
}

/* Starts children that fork more children and never exit; half of them leave the session. */
static void fork_bomb(char **arguments)
{
    (void)arguments;
    for (int i = 0; i < MOST_FORKS; i++) {
        pid_t child = fork();
        if (child == 0 && i % 2)
            setsid();
        if (child < 0)
            usleep(1000);
    }
    for (;;)
        pause();
}

static void memory_bomb(char **arguments)
{
    long most = number(arguments[0]);
    for (long i = 0; i < most; i++) {
        char *block = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            denied(errno);
        memset(block, (int)(i % 255) + 1, MIB);
    }
    allowed(NULL);
}

static void fill_disk(char **arguments)
{
    static char block[BLOCK];
    long most = number(arguments[1]) * (long)(MIB / BLOCK);
    memset(block, 'x', sizeof block);
    int file = open(arguments[0], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        denied(errno);
    for (long i = 0; i < most; i++)
        if (write(file, block, sizeof block) < 0)
            denied(errno);
    allowed(NULL);
}

static void fill_inodes(char **arguments)
{
    char path[512], name[32];
    long most = number(arguments[1]);
    if (mkdir(arguments[0], 0755) < 0)
        denied(errno);
    for (long i = 0; i < most; i++) {
        snprintf(name, sizeof name, "%ld", i);
        join(path, sizeof path, arguments[0], name);
        int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file < 0)
            denied(errno);
        close(file);
    }
    allowed(NULL);
}

static void flood(char **arguments)
{
    static char block[BLOCK];
    long most = number(arguments[0]) * (long)(MIB / BLOCK);
    memset(block, 'x', sizeof block);
    for (long i = 0; i < most; i++)
        for (size_t sent = 0; sent < sizeof block;) {
            ssize_t wrote = write(1, block + sent, sizeof block - sent);
            if (wrote < 0)
                _exit(1);
            sent += (size_t)wrote;
        }
    _exit(0);
}

static void many_processes(char **arguments)
{
    enum { MOST = 4096 };
    static pid_t children[MOST];
    int wanted = number(arguments[0]), made = 0;
    for (; made < wanted && made < MOST; made++) {
        children[made] = fork();
        if (children[made] < 0)
            break;
        if (children[made] == 0)
            for (;;)
                pause();
    }
    for (int i = 0; i < made; i++)
        kill(children[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    report_count(made);
}

static long take_watchers(long most)
{
    long count = 0;
    while (count < most && inotify_init1(IN_CLOEXEC) >= 0)
        count++;
    return count;
}

static void hold_watchers(char **arguments) { hold(take_watchers, number(arguments[0])); }

static void take_watcher(char **arguments)
{
    (void)arguments;
    judge(inotify_init1(IN_CLOEXEC));
}

/* Opens pseudo-terminals until the kernel refuses, at most the given number. */
static void open_terminals(char **arguments)
{
    long opened = 0;
    while (opened < number(arguments[0]) && open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC) >= 0)
        opened++;
    report_count(opened);
}

/* Both kinds of lock that a child inherits with the file, shared ones where it cannot be written to; -1 with errno. */
static int lock(const char *path)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == EROFS) {
        file = open(path, O_RDONLY | O_CLOEXEC);
        whole.l_type = F_RDLCK;
    }
    return file < 0 || flock(file, LOCK_EX | LOCK_NB) < 0 ? -1 : fcntl(file, F_OFD_SETLK, &whole);
}

/* Leaves a process behind that holds locks on a file. */
static void hold_lock(char **arguments)
{
    if (lock(arguments[0]) < 0)
        denied(errno);
    pid_t child = fork();
    if (child < 0)
        broken("fork failed");
    if (child > 0)
        allowed(NULL);
    setsid();
    for (int i = 0; i < 3; i++)
        close(i);
    sleep(HOLD_S);
    _exit(0);
}

static void take_lock(char **arguments) { judge(lock(arguments[0])); }

/* How many processes are seen to open a file within so many milliseconds, 1 at most. */
static void await_open(char **arguments)
{
    struct pollfd watch = {.fd = inotify_init1(IN_CLOEXEC), .events = POLLIN};
    if (watch.fd < 0 || inotify_add_watch(watch.fd, arguments[0], IN_OPEN) < 0)
        denied(errno);
    report_count(poll(&watch, 1, number(arguments[1])));
}

const struct probe exhaustion_probes[] = {
    {"fork-bomb", 0, fork_bomb},
    {"memory-bomb", 1, memory_bomb},
    {"fill-disk", 2, fill_disk},
    {"fill-inodes", 2, fill_inodes},
    {"flood", 1, flood},
    {"hold-watchers", 1, hold_watchers},
    {"take-watcher", 0, take_watcher},
    {"many-processes", 1, many_processes},
    {"open-terminals", 1, open_terminals},
    {"hold-lock", 1, hold_lock},
    {"take-lock", 1, take_lock},
    {"await-open", 2, await_open},
    {NULL, 0, NULL},
};
