/* Other processes: those of the host, and the guest itself. */
#include "probe.h"

#include <dirent.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

enum { STAY_MS = 10000, SIGN_MS = 20 };

/* Whether some other process shows `needle` in /proc/PID/FILE. */
static void find_in_processes(char **arguments)
{
    DIR *directory = opendir("/proc");
    if (!directory)
        denied(errno);
    static char text[65536];
    size_t length = strlen(arguments[1]);
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[300];
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/%.20s", entry->d_name, arguments[0]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = file < 0 ? -1 : read(file, text, sizeof text);
        if (file >= 0)
            close(file);
        if (got > 0 && memmem(text, (size_t)got, arguments[1], length))
            allowed(path);
    }
    denied(ENOENT);
}

static void signal_process(char **arguments)
{
    judge(kill(number(arguments[0]), number(arguments[1])));
}

static void every_signal(char **arguments)
{
    pid_t target = number(arguments[0]);
    for (int round = 0; round < 2; round++)
        for (int i = 1; i <= 64; i++)
            kill(target, i);
    allowed(NULL);
}

static void trace(char **arguments)
{
    judge(ptrace(PTRACE_SEIZE, number(arguments[0]), NULL, NULL));
}

static void read_memory(char **arguments)
{
    char byte;
    struct iovec own = {&byte, 1};
    struct iovec other = {(void *)0x1000, 1}; /* nothing is mapped there: EFAULT means that access was given */
    if (process_vm_readv(number(arguments[0]), &own, 1, &other, 1, 0) >= 0 || errno == EFAULT)
        allowed(NULL);
    denied(errno);
}

static void pidfd(char **arguments)
{
    judge(syscall(SYS_pidfd_open, number(arguments[0]), 0));
}

static void steal_descriptor(char **arguments)
{
    long process = syscall(SYS_pidfd_open, number(arguments[0]), 0);
    if (process < 0)
        denied(errno);
    int error = 0;
    for (int i = 0; i < 64; i++) {
        if (syscall(SYS_pidfd_getfd, process, i, 0) >= 0)
            allowed(NULL);
        if (errno != EBADF)
            error = errno;
    }
    denied(error ? error : EBADF);
}

/* The descriptor numbers are not secret; reading their targets needs the same permission as opening them. */
static void look_at_descriptors(char **arguments)
{
    char path[64], entry_path[400], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", number(arguments[0]));
    DIR *directory = opendir(path);
    int error = directory ? ENOENT : errno;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.')
            continue;
        join(entry_path, sizeof entry_path, path, entry->d_name);
        if (readlink(entry_path, target, sizeof target) >= 0)
            allowed(entry_path);
        error = errno;
    }
    denied(error);
}

static void open_memory(char **arguments)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", number(arguments[0]));
    judge(open(path, O_RDWR | O_CLOEXEC));
}

/* A running program cannot be written (ETXTBSY), but it ends at some time, so ETXTBSY is no protection. */
static void write_program(char **arguments)
{
    char path[64], again[64];
    snprintf(path, sizeof path, "/proc/%d/exe", number(arguments[0]));
    if (open(path, O_WRONLY | O_CLOEXEC) >= 0)
        allowed("opened for writing");
    if (errno == ETXTBSY)
        allowed("only busy");
    int error = errno;
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader >= 0) {
        snprintf(again, sizeof again, "/proc/self/fd/%d", reader);
        if (open(again, O_WRONLY | O_CLOEXEC) >= 0)
            allowed("opened for writing through a descriptor");
        if (errno == ETXTBSY)
            allowed("only busy, through a descriptor");
    }
    denied(error);
}

/* Really writes, repeatedly, because the program may be starting or ending. */
static void overwrite_program(char **arguments)
{
    char path[64], again[64];
    int error = ENOENT;
    snprintf(path, sizeof path, "/proc/%d/exe", number(arguments[0]));
    for (int i = 0; i < 2000; i++) {
        int writer = open(path, O_WRONLY | O_CLOEXEC), reader = open(path, O_RDONLY | O_CLOEXEC);
        if (writer < 0)
            error = errno;
        if (writer < 0 && reader >= 0) {
            snprintf(again, sizeof again, "/proc/self/fd/%d", reader);
            writer = open(again, O_WRONLY | O_CLOEXEC);
        }
        if (writer >= 0 && pwrite(writer, "X", 1, 0) == 1)
            allowed(NULL);
        close(writer);
        close(reader);
    }
    denied(error);
}

static void find_named(char **arguments)
{
    char path[64], name[64] = "", text[32];
    for (pid_t process = getppid(); process > 0;) {
        snprintf(path, sizeof path, "/proc/%d/stat", process);
        FILE *stat = fopen(path, "re");
        int parent = 0;
        if (!stat || fscanf(stat, "%*d (%63[^)]) %*c %d", name, &parent) != 2)
            break;
        fclose(stat);
        if (strcmp(name, arguments[0]) == 0) {
            snprintf(text, sizeof text, "%d", process);
            value(text);
        }
        process = parent;
    }
    denied(ESRCH);
}

static void open_descriptors(char **arguments)
{
    (void)arguments;
    char text[512] = "";
    for (int i = 0; i < 4096; i++) {
        char one[16];
        if (fcntl(i, F_GETFD) < 0)
            continue;
        snprintf(one, sizeof one, "%s%d", *text ? " " : "", i);
        strncat(text, one, sizeof text - strlen(text) - 1);
    }
    value(text);
}

static void shared_memory(char **arguments)
{
    key_t key = number(arguments[1]);
    if (arguments[0][0] == 'm')
        judge(shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0666));
    int segment = shmget(key, 0, 0);
    if (segment >= 0 && arguments[0][0] == 'r')
        judge(shmctl(segment, IPC_RMID, NULL));
    judge(segment);
}

/* A process that shows that it is alive by writing a file repeatedly, for a limited time. */
static _Noreturn void stay(const char *path)
{
    setsid();
    for (int i = 0; i < STAY_MS / SIGN_MS; i++) {
        int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (file >= 0)
            close(file);
        usleep(SIGN_MS * 1000);
    }
    _exit(0);
}

/* Tries to leave the action's process tree: gives up being the subreaper, or makes a child that is its sibling. */
static void leave_tree(char **arguments)
{
    if (strcmp(arguments[0], "sibling") == 0) {
        if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL) == 0)
            stay(arguments[1]);
    } else {
        prctl(PR_SET_CHILD_SUBREAPER, 0);
        if (fork() == 0) {
            if (fork() == 0)
                stay(arguments[1]);
            _exit(0);
        }
    }
    for (;;)
        pause();
}

/* Whether this process can protect itself from the OOM killer. */
static void protect_from_oom(char **arguments)
{
    (void)arguments;
    int file = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (file < 0)
        denied(errno);
    judge(write(file, "-1000", 5));
}

/* Sends a signal to all processes that this one may signal, over and over. */
static void signal_all_for(char **arguments)
{
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += number(arguments[1]) / 1000 + 1;
    do {
        (void)kill(-1, (int)number(arguments[0]));
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec);
    allowed("all were signalled");
}

const struct probe process_probes[] = {
    {"signal-all-for", 2, signal_all_for},
    {"find-in-processes", 2, find_in_processes},
    {"signal-process", 2, signal_process},
    {"every-signal", 1, every_signal},
    {"trace", 1, trace},
    {"read-memory", 1, read_memory},
    {"pidfd", 1, pidfd},
    {"steal-descriptor", 1, steal_descriptor},
    {"look-at-descriptors", 1, look_at_descriptors},
    {"open-memory", 1, open_memory},
    {"write-program", 1, write_program},
    {"overwrite-program", 1, overwrite_program},
    {"find-named", 1, find_named},
    {"open-descriptors", 0, open_descriptors},
    {"shared-memory", 2, shared_memory},
    {"leave-tree", 2, leave_tree},
    {"protect-from-oom", 0, protect_from_oom},
    {NULL, 0, NULL},
};
