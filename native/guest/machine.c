#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <linux/random.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/fields.h"
#include "action.h"
#include "clock.h"
#include "loop.h"
#include "stream.h"

enum { AGAIN_WORD = 'A', CLOCK_WORD = 'C', CLOCK_WORD_BYTES = 9, FIRST = -20, URANDOM_MAJOR = 1, URANDOM_MINOR = 9 };

#define BOUNDS "/sys/fs/cgroup/sandbox"
#define READY "R"

static const char *stream_path; /* NULL: no machine of our own */
static const char *control_path;
static struct watch control_watch = WATCH_CLOSED;
static bool asked_again;
/* Opened before the sandbox has processes, which could replace every path; -1: missing, or another kind of file. */
static int urandom = -1;
static int memory_events = -1;
static int pids_events = -1;
static struct met met_before;

static void set_clock(uint64_t clock_ns) {
    struct timespec now = {.tv_sec = (time_t)(clock_ns / NS_PER_S), .tv_nsec = (long)(clock_ns % NS_PER_S)};
    clock_settime(CLOCK_REALTIME, &now);
}

static void control_ready(struct watch *watch, uint32_t events) {
    uint8_t word[CLOCK_WORD_BYTES];
    ssize_t got = events & EPOLLIN ? read(watch->fd, word, sizeof word) : 0;
    if (got == CLOCK_WORD_BYTES && word[0] == CLOCK_WORD) {
        set_clock(load_u64(word + 1));
        return;
    }
    asked_again = got == 1 && word[0] == AGAIN_WORD;
    loop_stop();
}

/* Clones of one machine must not generate the same random numbers. */
static bool reseed(const uint8_t *seed, size_t size) {
    struct {
        struct rand_pool_info info;
        uint8_t bytes[SEED_MAX_BYTES];
    } entropy = {.info = {.entropy_count = (int)(size * 8), .buf_size = (int)size}};
    memcpy(entropy.info.buf, seed, size);
    return urandom >= 0 && ioctl(urandom, RNDADDENTROPY, &entropy) == 0 && ioctl(urandom, RNDRESEEDCRNG) == 0;
}

static void write_machine_id(const char *machine_id) {
    int fd = open("/etc/machine-id", O_WRONLY | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (fd < 0) return; /* an image without /etc has no use for one */
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && ftruncate(fd, 0) == 0) {
        dprintf(fd, "%.*s\n", MACHINE_ID_BYTES, machine_id);
    }
    close(fd);
}

void machine_identify(const struct hello *hello) {
    if (stream_path == NULL) return;
    if (hello->clock_ns > 0) set_clock(hello->clock_ns);
    if (hello->hostname_bytes > 0 && sethostname(hello->hostname, hello->hostname_bytes) != 0) errno = 0; /* optional */
    if (hello->has_machine_id) write_machine_id(hello->machine_id);
    if (hello->seed_bytes > 0 && !reseed(hello->seed, hello->seed_bytes)) {
        stream_fault("the machine cannot be given random numbers of its own");
    }
}

/* The number behind `key` in a file of lines "KEY NUMBER"; 0 if there is none. */
static uint64_t counter(int fd, const char *key) {
    char text[512];
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    if (got <= 0) return 0;
    text[got] = '\0';
    size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        if (*line == '\n') line++;
        if (strncmp(line, key, length) == 0 && line[length] == ' ') return strtoull(line + length, NULL, 10);
    }
    return 0;
}

struct met machine_met(void) {
    if (stream_path == NULL) return met_before;
    met_before = (struct met){counter(memory_events, "oom_kill"), counter(pids_events, "max")};
    return met_before;
}

struct met machine_met_before(void) {
    return met_before;
}

/* The sandbox has the machine's root user, but must not control the guest: it can neither trace it nor change the kernel. */
static bool protect(void) {
    const int withheld[] = {CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT};
    for (size_t i = 0; i < sizeof withheld / sizeof *withheld; i++) {
        if (prctl(PR_CAPBSET_DROP, withheld[i], 0, 0, 0) != 0) return false;
    }
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

/* The guest gets a higher priority, so that it can end a thousand runaway processes; its children get the normal one. */
static bool come_first(void) {
    const struct sched_param ordinary = {0};
    return setpriority(PRIO_PROCESS, 0, FIRST) == 0 &&
           syscall(SYS_sched_setscheduler, 0, SCHED_OTHER | SCHED_RESET_ON_FORK, &ordinary) == 0;
}

/* In a cloned machine the sandbox may have replaced the file. */
static int open_urandom(void) {
    int fd = open("/dev/urandom", O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || (fstat(fd, &info) == 0 && S_ISCHR(info.st_mode) && info.st_rdev == makedev(URANDOM_MAJOR, URANDOM_MINOR))) {
        return fd;
    }
    close(fd);
    return -1;
}

static int open_events(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    struct statfs system;
    if (fd < 0 || (fstatfs(fd, &system) == 0 && (unsigned long)system.f_type == CGROUP2_SUPER_MAGIC)) return fd;
    close(fd);
    return -1;
}

bool machine_own(const char *path, const char *control) {
    if (!protect() || !come_first()) return false;
    stream_path = path;
    control_path = control;
    control_watch.fd = open(control, O_RDWR | O_CLOEXEC);
    control_watch.ready = control_ready;
    urandom = open_urandom();
    memory_events = open_events(BOUNDS "/memory.events");
    pids_events = open_events(BOUNDS "/pids.events");
    machine_met(); /* limits hit in the original machine do not count for its clone */
    return control_watch.fd >= 0 && watch_arm(&control_watch, EPOLLIN) && write(control_watch.fd, READY, 1) == 1;
}

static void end_all(void) {
    kill(-1, SIGKILL);
    while (wait(NULL) > 0 || errno == EINTR) continue;
}

/* Files that are only in memory belonged to the processes that are gone. */
static void empty_shared_memory(void) {
    struct statfs space;
    char options[64] = "mode=1777";
    if (statfs("/dev/shm", &space) == 0 && space.f_blocks > 0) {
        snprintf(options, sizeof options, "mode=1777,size=%" PRIu64, (uint64_t)space.f_blocks * (uint64_t)space.f_bsize);
    }
    umount2("/dev/shm", MNT_DETACH);
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options);
}

void machine_again(int stream) {
    if (!asked_again) return;
    end_all();
    actions_clean_up();
    empty_shared_memory();
    close(stream); /* this also drops unread bytes of the old stream */
    int fresh = open(stream_path, O_RDWR);
    if (fresh < 0) return;
    char number[16];
    snprintf(number, sizeof number, "%d", fresh);
    char *const argv[] = {(char *)"dutyfree-guest", (char *)"--fd",         number,
                          (char *)"--machine",      (char *)stream_path, (char *)control_path,
                          NULL};
    char *const envp[] = {NULL};
    execve("/proc/self/exe", argv, envp);
}
