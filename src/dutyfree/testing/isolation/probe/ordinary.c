/* Things that ordinary programs do, so the sandbox must allow them. */
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

static void trace_child(char **arguments)
{
    (void)arguments;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(errno);
        raise(SIGSTOP);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        denied(errno);
    if (!WIFSTOPPED(status))
        denied(WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD);
    errno = 0;
    if (ptrace(PTRACE_PEEKDATA, child, &status, NULL) == -1 && errno)
        denied(errno);
    if (ptrace(PTRACE_CONT, child, NULL, NULL) < 0 || waitpid(child, &status, 0) < 0)
        denied(errno);
    if (!WIFEXITED(status))
        broken("the traced child did not end");
    allowed(NULL);
}

static void *count_up(void *argument)
{
    __atomic_fetch_add((int *)argument, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void threads(char **arguments)
{
    enum { MOST = 256 };
    pthread_t running[MOST];
    int wanted = number(arguments[0]), count = 0;
    if (wanted > MOST)
        broken("too many threads asked for");
    for (int i = 0; i < wanted; i++) {
        int error = pthread_create(&running[i], NULL, count_up, &count);
        if (error)
            denied(error);
    }
    for (int i = 0; i < wanted; i++)
        pthread_join(running[i], NULL);
    if (count != wanted)
        broken("threads were lost");
    allowed(NULL);
}

static void terminal_pair(char **arguments)
{
    (void)arguments;
    char text[8] = "";
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        denied(errno);
    char *name = ptsname(master);
    int slave = name ? open(name, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
    if (slave < 0 || write(slave, "ok", 2) != 2 || read(master, text, sizeof text) != 2)
        denied(errno);
    allowed(name);
}

static void on_terminal(char **arguments)
{
    (void)arguments;
    const char *name = ttyname(0);
    int own = open("/dev/tty", O_RDWR | O_CLOEXEC);
    if (!name || own < 0)
        denied(errno);
    allowed(name);
}

static void posix_shared_memory(char **arguments)
{
    int memory = shm_open(arguments[0], O_RDWR | O_CREAT | O_EXCL, 0600);
    if (memory < 0 || ftruncate(memory, 65536) < 0)
        denied(errno);
    char *view = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    shm_unlink(arguments[0]);
    if (view == MAP_FAILED)
        denied(errno);
    memset(view, 1, 65536);
    allowed(NULL);
}

static void device_nodes(char **arguments)
{
    (void)arguments;
    static const char *const readable[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    char byte = 1;
    for (size_t i = 0; i < sizeof readable / sizeof *readable; i++) {
        int device = open(readable[i], O_RDWR | O_CLOEXEC);
        if (device < 0)
            device = open(readable[i], O_RDONLY | O_CLOEXEC);
        if (device < 0 || read(device, &byte, 1) < 0)
            denied(errno);
    }
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (null < 0 || full < 0 || write(null, &byte, 1) != 1)
        denied(errno);
    if (write(full, &byte, 1) >= 0 || errno != ENOSPC)
        broken("/dev/full is not full");
    allowed(NULL);
}

static _Noreturn void failing(const char *what)
{
    char text[128];
    snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    value(text);
}

static void everyday_calls(char **arguments)
{
    (void)arguments;
    sigset_t signals;
    sigemptyset(&signals);
    cpu_set_t cpus;
    char bytes[16];
    struct statx seen;
    sem_t semaphore;
    if (memfd_create("probe", MFD_CLOEXEC) < 0)
        failing("memfd_create");
    if (inotify_init1(IN_CLOEXEC) < 0)
        failing("inotify_init1");
    if (timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) < 0)
        failing("timerfd_create");
    if (signalfd(-1, &signals, SFD_CLOEXEC) < 0)
        failing("signalfd");
    if (eventfd(0, EFD_CLOEXEC) < 0)
        failing("eventfd");
    if (epoll_create1(EPOLL_CLOEXEC) < 0)
        failing("epoll_create1");
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        failing("getrandom");
    if (statx(AT_FDCWD, "/", 0, STATX_BASIC_STATS, &seen) < 0)
        failing("statx");
    if (sched_getaffinity(0, sizeof cpus, &cpus) < 0 || sched_setaffinity(0, sizeof cpus, &cpus) < 0)
        failing("sched_setaffinity");
    if (syscall(SYS_pidfd_open, getpid(), 0) < 0)
        failing("pidfd_open");
    if (syscall(SYS_membarrier, 0, 0, 0) < 0)
        failing("membarrier");
    if (mlock(bytes, sizeof bytes) < 0)
        failing("mlock");
    if (sem_init(&semaphore, 1, 1) < 0 || sem_wait(&semaphore) < 0)
        failing("semaphore");
    int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    if (segment < 0 || shmctl(segment, IPC_RMID, NULL) < 0)
        failing("shmget");
    if (system("exit 0") != 0)
        failing("system");
    value("all");
}

const struct probe ordinary_probes[] = {
    {"trace-child", 0, trace_child},
    {"threads", 1, threads},
    {"terminal-pair", 0, terminal_pair},
    {"on-terminal", 0, on_terminal},
    {"posix-shared-memory", 1, posix_shared_memory},
    {"device-nodes", 0, device_nodes},
    {"everyday-calls", 0, everyday_calls},
    {NULL, 0, NULL},
};
