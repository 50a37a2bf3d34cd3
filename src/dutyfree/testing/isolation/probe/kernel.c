/* System calls that reach the kernel that sandbox and host share. */
#include "probe.h"

#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <time.h>

#if defined(__x86_64__)
#include <sys/io.h>
#endif

static void add_key(char **arguments)
{
    (void)arguments;
    judge(syscall(SYS_add_key, "user", "dutyfree-probe", "x", 1, KEY_SPEC_PROCESS_KEYRING));
}

static void keyctl(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1));
}

static void request_key(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_request_key, "user", "dutyfree-no-such-key", NULL, 0));
}

static void init_module(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_init_module, NULL, 0, ""));
}

static void finit_module(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_finit_module, -1, "", 0));
}

static void delete_module(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_delete_module, "dutyfree_no_such_module", O_NONBLOCK));
}

static void kexec_load(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_kexec_load, 0, 0, NULL, 0xdead));
}

static void kexec_file_load(char **arguments)
{
    (void)arguments;
#ifdef SYS_kexec_file_load
    judge_permission(syscall(SYS_kexec_file_load, -1, -1, 0, NULL, 0xdead));
#else
    denied(ENOSYS);
#endif
}

static void reboot_probe(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_reboot, 0, 0, 0, NULL));
}

static void bpf(char **arguments)
{
    (void)arguments;
    union bpf_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.map_type = BPF_MAP_TYPE_ARRAY;
    attributes.key_size = 4;
    attributes.value_size = 4;
    attributes.max_entries = 1;
    judge(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes));
}

static void perf_event_open(char **arguments)
{
    (void)arguments;
    struct perf_event_attr event;
    memset(&event, 0, sizeof event);
    event.type = PERF_TYPE_SOFTWARE;
    event.size = sizeof event;
    event.config = PERF_COUNT_SW_CPU_CLOCK;
    event.exclude_kernel = 1;
    judge(syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
}

static void userfaultfd(char **arguments)
{
    (void)arguments;
    judge(syscall(SYS_userfaultfd, O_CLOEXEC | 1 /* UFFD_USER_MODE_ONLY */));
}

static void io_uring_setup(char **arguments)
{
    (void)arguments;
    unsigned char parameters[256] = {0};
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif
    judge(syscall(SYS_io_uring_setup, 1, parameters));
}

static void io_setup_probe(char **arguments)
{
    (void)arguments;
    unsigned long context = 0;
    judge(syscall(SYS_io_setup, 1, &context));
}

static void attach_filter(char **arguments)
{
    struct sock_filter accept_all = {BPF_RET | BPF_K, 0, 0, 0xffffffff};
    struct sock_fprog filter = {1, &accept_all};
    int option = strcmp(arguments[0], "reuseport") == 0 ? SO_ATTACH_REUSEPORT_CBPF : SO_ATTACH_FILTER, one = 1;
    struct sockaddr_in any = {.sin_family = AF_INET};
    int target = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (target < 0 || setsockopt(target, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) < 0 ||
        bind(target, (struct sockaddr *)&any, sizeof any) < 0)
        broken("no socket to filter");
    judge(setsockopt(target, SOL_SOCKET, option, &filter, sizeof filter));
}

static void open_by_handle_at_probe(char **arguments)
{
    (void)arguments;
    struct {
        struct file_handle head;
        unsigned char rest[8];
    } handle = {.head = {.handle_bytes = 8, .handle_type = 1}};
    int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        broken("cannot open /");
    judge_permission(open_by_handle_at(root, &handle.head, O_RDONLY));
}

static void open_socket(char **arguments)
{
    judge(socket(number(arguments[0]), number(arguments[1]) | SOCK_CLOEXEC, number(arguments[2])));
}

static void setns_probe(char **arguments)
{
    (void)arguments;
    int own = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    if (own < 0)
        denied(errno);
    judge(setns(own, CLONE_NEWUTS));
}

static const struct {
    const char *name;
    int flag;
} namespaces[] = {
    {"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID},       {"net", CLONE_NEWNET},
    {"uts", CLONE_NEWUTS},   {"ipc", CLONE_NEWIPC},  {"cgroup", CLONE_NEWCGROUP},
};

static int namespace_flag(const char *name)
{
    for (size_t i = 0; i < sizeof namespaces / sizeof *namespaces; i++)
        if (strcmp(namespaces[i].name, name) == 0)
            return namespaces[i].flag;
    broken("no such kind of namespace");
}

static void unshare_probe(char **arguments)
{
    judge(unshare(namespace_flag(arguments[0])));
}

static _Noreturn void judge_clone(long child)
{
    if (child == 0)
        _exit(0);
    if (child > 0)
        waitpid((pid_t)child, NULL, 0);
    judge(child);
}

static void clone_probe(char **arguments)
{
    judge_clone(syscall(SYS_clone, namespace_flag(arguments[0]) | SIGCHLD, NULL, NULL, NULL, NULL));
}

static void clone3_probe(char **arguments)
{
    struct clone_args request;
    memset(&request, 0, sizeof request);
    request.flags = (unsigned long long)namespace_flag(arguments[0]);
    request.exit_signal = SIGCHLD;
    judge_clone(syscall(SYS_clone3, &request, sizeof request));
}

/* Uses a terminal that the probe makes itself, to leave alone the terminal that it runs on. */
static int terminal_ioctl(void *argument)
{
    unsigned long request = *(unsigned long *)argument;
    setsid();
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        return 254;
    char *name = ptsname(master);
    int slave = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    if (slave < 0)
        return 254;
    char byte = request == TIOCSTI ? 'x' : 6; /* TIOCLINUX 6: only asks for the shift state */
    return ioctl(slave, request, &byte) < 0 ? errno : 0;
}

static _Noreturn void judge_terminal(unsigned long request)
{
    int error = in_child(terminal_ioctl, &request);
    if (error >= 254)
        broken("no terminal could be made");
    if (error)
        denied(error);
    allowed(NULL);
}

static void tiocsti(char **arguments)
{
    (void)arguments;
    judge_terminal(TIOCSTI);
}

static void tioclinux(char **arguments)
{
    (void)arguments;
    judge_terminal(0x541C);
}

static void adjust_clock(char **arguments)
{
    (void)arguments;
    struct timex change;
    memset(&change, 0, sizeof change);
    change.modes = ADJ_TICK; /* a tick of zero is refused as invalid, after the permission check */
    judge_permission(clock_adjtime(CLOCK_REALTIME, &change));
}

static void set_clock(char **arguments)
{
    (void)arguments;
    judge(syscall(SYS_settimeofday, NULL, NULL)); /* changes nothing, yet needs the permission */
}

static void read_kernel_log(char **arguments)
{
    (void)arguments;
    char text[64];
    judge(syscall(SYS_syslog, 3, text, sizeof text));
}

static void acct_probe(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_acct, "/dutyfree-no-such-file"));
}

static void swapon_probe(char **arguments)
{
    (void)arguments;
    judge_permission(syscall(SYS_swapon, "/dutyfree-no-such-file", 0));
}

static void port_access(char **arguments)
{
    (void)arguments;
#if defined(__x86_64__)
    judge(iopl(3));
#else
    denied(ENOSYS);
#endif
}

static void personality_probe(char **arguments)
{
    judge(syscall(SYS_personality, strtoul(arguments[0], NULL, 0)));
}

/* 32-bit system calls on a 64-bit kernel: a seccomp filter that checks only 64-bit calls can be bypassed. */
static void call_i386(char **arguments)
{
    (void)arguments;
#if defined(__x86_64__)
    long result = 20; /* getpid */
    __asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    errno = (int)-result;
    judge(result);
#else
    denied(ENOSYS);
#endif
}

static void call_x32(char **arguments)
{
    (void)arguments;
#if defined(__x86_64__)
    judge(syscall(SYS_getpid | 0x40000000));
#else
    denied(ENOSYS);
#endif
}

const struct probe kernel_probes[] = {
    {"add-key", 0, add_key},
    {"keyctl", 0, keyctl},
    {"request-key", 0, request_key},
    {"init-module", 0, init_module},
    {"finit-module", 0, finit_module},
    {"delete-module", 0, delete_module},
    {"kexec-load", 0, kexec_load},
    {"kexec-file-load", 0, kexec_file_load},
    {"reboot", 0, reboot_probe},
    {"bpf", 0, bpf},
    {"perf-event-open", 0, perf_event_open},
    {"userfaultfd", 0, userfaultfd},
    {"io-uring-setup", 0, io_uring_setup},
    {"io-setup", 0, io_setup_probe},
    {"attach-filter", 1, attach_filter},
    {"open-by-handle-at", 0, open_by_handle_at_probe},
    {"socket", 3, open_socket},
    {"setns", 0, setns_probe},
    {"unshare", 1, unshare_probe},
    {"clone", 1, clone_probe},
    {"clone3", 1, clone3_probe},
    {"tiocsti", 0, tiocsti},
    {"tioclinux", 0, tioclinux},
    {"adjust-clock", 0, adjust_clock},
    {"set-clock", 0, set_clock},
    {"read-kernel-log", 0, read_kernel_log},
    {"acct", 0, acct_probe},
    {"swapon", 0, swapon_probe},
    {"port-access", 0, port_access},
    {"personality", 1, personality_probe},
    {"call-i386", 0, call_i386},
    {"call-x32", 0, call_x32},
    {NULL, 0, NULL},
};
