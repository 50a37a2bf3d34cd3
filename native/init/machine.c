#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MODULES_MAX = 100, SAFE = MS_NOSUID | MS_NODEV | MS_NOEXEC };

#define PORTS "/sys/class/virtio-ports"
#define BOUNDS "/sys/fs/cgroup/sandbox"
#define IMAGE "/dev/vda"

static bool make_directory(const char *path) {
    return mkdir(path, 0755) == 0 || errno == EEXIST;
}

static bool put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text, strlen(text)) >= 0;
    close(fd);
    return done;
}

static bool put_number(const char *path, uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return put(path, text);
}

static bool place(const char *kind, const char *path, unsigned long flags, const char *options) {
    return make_directory(path) && mount(kind, path, kind, flags, options) == 0;
}

bool machine_mount_kernel_files(void) {
    return (place("devtmpfs", "/dev", MS_NOSUID, "mode=755") || errno == EBUSY) && place("proc", "/proc", SAFE, NULL) &&
           place("sysfs", "/sys", SAFE, NULL) && place("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666") &&
           place("cgroup2", "/sys/fs/cgroup", SAFE, NULL);
}

bool machine_load_modules(void) {
    for (int number = 0; number < MODULES_MAX; number++) {
        char path[32];
        snprintf(path, sizeof path, "/modules/%02d.ko", number);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return errno == ENOENT;
        bool done = syscall(SYS_finit_module, fd, "", 0) == 0 || errno == EEXIST;
        close(fd);
        if (!done) return false;
        unlink(path); /* its memory is the sandbox's */
    }
    errno = E2BIG;
    return false;
}

static bool is_called(const char *port, const char *wanted) {
    char path[128];
    char name[64] = "";
    snprintf(path, sizeof path, PORTS "/%.32s/name", port);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, name, sizeof name - 1);
    close(fd);
    return got > 0 && strlen(wanted) == (size_t)got - 1 && memcmp(name, wanted, (size_t)got - 1) == 0;
}

bool machine_find_port(const char *name, char *path, size_t size) {
    DIR *ports = opendir(PORTS);
    if (ports == NULL) return false;
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(ports)) != NULL) {
        if (entry->d_name[0] == '.' || !is_called(entry->d_name, name)) continue;
        snprintf(path, size, "/dev/%.32s", entry->d_name);
        found = access(path, R_OK | W_OK) == 0;
    }
    closedir(ports);
    return found;
}

static bool raise_loopback(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    bool done = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    return done;
}

static bool link_descriptors(void) {
    const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                    {"/proc/self/fd/0", "/dev/stdin"},
                                    {"/proc/self/fd/1", "/dev/stdout"},
                                    {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        if (symlink(links[i][0], links[i][1]) != 0 && errno != EEXIST) return false;
    }
    return true;
}

bool machine_prepare(void) {
    /* Without overcommit, the kernel would refuse a large allocation at once, and the OOM limit would not be seen. */
    return put("/proc/sys/vm/overcommit_memory", "1") && put("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu") &&
           make_directory(BOUNDS) && put(BOUNDS "/cgroup.procs", "0") && link_descriptors() &&
           place("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777") && raise_loopback();
}

bool machine_set_bounds(const struct order *order) {
    char cpu[48];
    char shared[48]; /* what is in /dev/shm is memory, too, and stays when processes have ended */
    uint64_t shared_bytes = order->memory_bytes > 0 ? order->memory_bytes / 4 : order->disk_bytes;
    snprintf(shared, sizeof shared, "size=%" PRIu64, shared_bytes);
    snprintf(cpu, sizeof cpu, "%" PRIu64 " %d", order->cpu_us, CPU_PERIOD_US);
    return (order->memory_bytes == 0 || put_number(BOUNDS "/memory.max", order->memory_bytes)) &&
           (order->pids == 0 || put_number(BOUNDS "/pids.max", order->pids + 1)) && /* this process is one of them */
           (order->cpu_us == 0 || put(BOUNDS "/cpu.max", cpu)) &&
           mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, shared) == 0;
}

/* The root of an overlay looks like its upper directory, which is new: make it look like the image's. */
static bool resemble(const char *path, const char *model) {
    struct stat info;
    return stat(model, &info) == 0 && chown(path, info.st_uid, info.st_gid) == 0 && chmod(path, info.st_mode & 07777) == 0;
}

/* The image may differ from the one at the machine's start, so cached blocks of the old one are dropped. */
static bool mount_image(void) {
    int fd = open(IMAGE, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = ioctl(fd, BLKFLSBUF, 0) == 0;
    close(fd);
    return done && make_directory("/image") && mount(IMAGE, "/image", "squashfs", MS_RDONLY, NULL) == 0;
}

bool machine_make_root(const struct order *order) {
    char space[96];
    snprintf(space, sizeof space, "size=%" PRIu64 ",nr_inodes=%" PRIu64 ",mode=700", order->disk_bytes, order->inodes);
    if (!mount_image() || !place("tmpfs", "/space", 0, space)) return false;
    if (!make_directory("/space/upper") || !make_directory("/space/work")) return false;
    if (!resemble("/space/upper", "/image")) return false;
    return place("overlay", "/root", 0, "lowerdir=/image,upperdir=/space/upper,workdir=/space/work");
}

static bool move_into_root(const char *path) {
    char target[32];
    snprintf(target, sizeof target, "/root%s", path);
    return make_directory(target) && mount(path, target, NULL, MS_MOVE, NULL) == 0;
}

bool machine_enter_root(void) {
    if (!move_into_root("/dev") || !move_into_root("/proc") || !move_into_root("/sys")) return false;
    return chdir("/root") == 0 && mount(".", "/", NULL, MS_MOVE, NULL) == 0 && chroot(".") == 0 && chdir("/") == 0;
}
