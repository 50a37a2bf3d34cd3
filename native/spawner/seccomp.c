/* The system calls that a cell may make: a list of what is allowed, everything else is refused.
 *
 * The list follows the default profile that container engines use, without the calls that those allow only together
 * with a capability that a cell never has. A call that is not on it gives EPERM, or ENOSYS if it is a recent one, so that
 * programs fall back to what they did before it existed. */
#include <asm/ioctls.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

#if defined __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "no list of system calls for this architecture"
#endif

static const int allowed[] = {
/* files */
#if defined __x86_64__
    SYS_open, SYS_creat, SYS_access, SYS_stat, SYS_lstat, SYS_chmod, SYS_chown, SYS_lchown, SYS_link, SYS_symlink,
    SYS_readlink, SYS_rename, SYS_rmdir, SYS_mkdir, SYS_mknod, SYS_unlink, SYS_utime, SYS_utimes, SYS_futimesat,
    SYS_getdents, SYS_dup2, SYS_pipe, SYS_poll, SYS_select, SYS_epoll_create, SYS_epoll_wait, SYS_epoll_wait_old,
    SYS_epoll_ctl_old, SYS_eventfd, SYS_signalfd, SYS_inotify_init, SYS_fork, SYS_vfork, SYS_pause, SYS_alarm, SYS_time,
    SYS_getpgrp, SYS_arch_prctl, SYS_modify_ldt, SYS_get_thread_area, SYS_set_thread_area, SYS_getrlimit,
#endif
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2, SYS_openat, SYS_openat2, SYS_close, SYS_close_range, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx,
    SYS_faccessat, SYS_faccessat2, SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_linkat, SYS_symlinkat,
    SYS_readlinkat, SYS_renameat, SYS_renameat2, SYS_mkdirat, SYS_mknodat, SYS_unlinkat, SYS_utimensat, SYS_getdents64,
    SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_readahead,
    SYS_sync, SYS_syncfs, SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_statfs, SYS_fstatfs, SYS_umask, SYS_flock,
    SYS_fcntl, SYS_dup, SYS_dup3, SYS_pipe2, SYS_splice, SYS_tee, SYS_vmsplice, SYS_sendfile, SYS_copy_file_range,
    SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_listxattr,
    SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_name_to_handle_at,
    SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_ioctl,
#ifdef SYS_fchmodat2
    SYS_fchmodat2,
#endif
    /* events and time */
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
    SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_timer_create, SYS_timer_settime,
    SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete, SYS_getitimer, SYS_setitimer, SYS_nanosleep,
    SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_times,
    /* memory */
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_mincore, SYS_msync, SYS_mlock, SYS_mlock2,
    SYS_mlockall, SYS_munlock, SYS_munlockall, SYS_memfd_create, SYS_membarrier, SYS_pkey_alloc, SYS_pkey_free,
    SYS_pkey_mprotect, SYS_remap_file_pages,
    /* processes and threads; namespaces are dealt with below */
    SYS_clone, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_kill, SYS_tkill,
    SYS_tgkill, SYS_pidfd_open, SYS_pidfd_send_signal, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
    SYS_getpid, SYS_getppid, SYS_gettid, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid,
    SYS_prctl, SYS_prlimit64, SYS_setrlimit, SYS_getrusage, SYS_getpriority, SYS_setpriority, SYS_ioprio_get,
    SYS_ioprio_set, SYS_personality, SYS_uname, SYS_sysinfo, SYS_getrandom, SYS_getcpu, SYS_futex, SYS_get_robust_list,
    SYS_set_robust_list, SYS_set_tid_address, SYS_restart_syscall, SYS_rseq, SYS_seccomp, SYS_landlock_create_ruleset,
    SYS_landlock_add_rule, SYS_landlock_restrict_self, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity,
    SYS_sched_getparam, SYS_sched_setparam, SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_getattr,
    SYS_sched_setattr, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
#ifdef SYS_process_mrelease
    SYS_process_mrelease,
#endif
#ifdef SYS_futex_waitv
    SYS_futex_waitv,
#endif
    /* identity: all of it inside the cell's own range of ids */
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_setuid,
    SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_setfsuid, SYS_setfsgid,
    SYS_capget, SYS_capset,
    /* signals */
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_rt_sigreturn, SYS_sigaltstack,
    /* sockets; families are dealt with below */
    SYS_socket, SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_shutdown, SYS_sendto,
    SYS_sendmsg, SYS_sendmmsg, SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg, SYS_getsockname, SYS_getpeername,
    SYS_getsockopt, SYS_setsockopt,
    /* System V and POSIX IPC, in the cell's own namespace */
    SYS_shmget, SYS_shmat, SYS_shmdt, SYS_shmctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_semctl, SYS_msgget,
    SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive,
    SYS_mq_notify, SYS_mq_getsetattr,
};

enum {
    ALLOWED = sizeof allowed / sizeof *allowed,
    LAST_KNOWN = 462, /* mseal: what this list was drawn up against */
    FIRST_RECENT = 424, /* programs handle kernels without these newer calls */
    NEW_NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |
                     CLONE_NEWNET,
};

#define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, what))
/* Jumps count from the next instruction: (taken, not taken). */
#define IF(test, value, yes, no) BPF_JUMP(BPF_JMP | (test) | BPF_K, (uint32_t)(value), yes, no)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))

struct range {
    int first, last;
};

enum { MOST_INSTRUCTIONS = 128 + 5 * ALLOWED };
static struct sock_filter *code;
static unsigned short used;

static void emit(struct sock_filter instruction) { code[used++] = instruction; }

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void emit_architecture(void) {
    emit((struct sock_filter)LOAD(arch));
    emit((struct sock_filter)IF(BPF_JEQ, ARCH, 1, 0));
    emit((struct sock_filter)REFUSE(ENOSYS));
    emit((struct sock_filter)LOAD(nr));
    emit((struct sock_filter)IF(BPF_JGT, LAST_KNOWN, 0, 1)); /* x32 calls are up there too */
    emit((struct sock_filter)REFUSE(ENOSYS));
}

/* Calls that cells do not get. They give ENOSYS, so libraries fall back to older calls. */
static void emit_absent(void) {
    static const int absent[] = {
        SYS_clone3, /* hides its flags behind a pointer */
        /* Asynchronous I/O has one counter for the whole machine (fs.aio-max-nr). */
        SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents, SYS_io_pgetevents};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        emit((struct sock_filter)IF(BPF_JEQ, absent[i], 0, 1));
        emit((struct sock_filter)REFUSE(ENOSYS));
    }
}

/* A time-out ends everything below an action's first process. Nothing may leave that tree: orphans stay with the first
 * process as long as it is their reaper, and no process may be created as a sibling of its creator. */
static void emit_processes(void) {
    emit((struct sock_filter)IF(BPF_JEQ, SYS_clone, 0, 4));
    emit((struct sock_filter)LOAD(args[0]));
    emit((struct sock_filter)IF(BPF_JSET, NEW_NAMESPACES | CLONE_PARENT, 0, 1));
    emit((struct sock_filter)REFUSE(EPERM));
    emit((struct sock_filter)ALLOW);
    emit((struct sock_filter)IF(BPF_JEQ, SYS_prctl, 0, 6));
    emit((struct sock_filter)LOAD(args[0]));
    emit((struct sock_filter)IF(BPF_JEQ, PR_SET_CHILD_SUBREAPER, 0, 3));
    emit((struct sock_filter)LOAD(args[1]));
    emit((struct sock_filter)IF(BPF_JEQ, 0, 0, 1));
    emit((struct sock_filter)REFUSE(EPERM));
    emit((struct sock_filter)ALLOW);
}

/* getifaddrs() needs one protocol of netlink; others reach the whole machine. */
static void emit_sockets(bool netlink) {
    emit((struct sock_filter)IF(BPF_JEQ, SYS_socketpair, 1, 0)); /* reaches the same protocols */
    emit((struct sock_filter)IF(BPF_JEQ, SYS_socket, 0, 11));
    emit((struct sock_filter)LOAD(args[0]));
    emit((struct sock_filter)IF(BPF_JEQ, AF_UNIX, 8, 0));
    emit((struct sock_filter)IF(BPF_JEQ, AF_INET, 7, 0));
    emit((struct sock_filter)IF(BPF_JEQ, AF_INET6, 6, 0));
    emit((struct sock_filter)IF(BPF_JEQ, AF_NETLINK, 1, 0));
    emit((struct sock_filter)REFUSE(EAFNOSUPPORT));
    emit((struct sock_filter)LOAD(args[2]));
    emit((struct sock_filter)IF(BPF_JEQ, NETLINK_ROUTE, 1, 0));
    emit((struct sock_filter)REFUSE(EPROTONOSUPPORT));
    if (netlink) emit((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    else emit((struct sock_filter)REFUSE(EPROTONOSUPPORT));
    emit((struct sock_filter)ALLOW);
    /* Filters are compiled into memory that has one limit for the whole machine (net.core.bpf_jit_limit). */
    emit((struct sock_filter)IF(BPF_JEQ, SYS_setsockopt, 0, 9));
    emit((struct sock_filter)LOAD(args[1]));
    emit((struct sock_filter)IF(BPF_JEQ, SOL_SOCKET, 0, 6));
    emit((struct sock_filter)LOAD(args[2]));
    emit((struct sock_filter)IF(BPF_JEQ, SO_ATTACH_FILTER, 3, 0));
    emit((struct sock_filter)IF(BPF_JEQ, SO_ATTACH_BPF, 2, 0));
    emit((struct sock_filter)IF(BPF_JEQ, SO_ATTACH_REUSEPORT_CBPF, 1, 0));
    emit((struct sock_filter)IF(BPF_JEQ, SO_ATTACH_REUSEPORT_EBPF, 0, 1));
    emit((struct sock_filter)REFUSE(EPERM));
    emit((struct sock_filter)ALLOW);
}

static void emit_arguments(void) {
    emit((struct sock_filter)IF(BPF_JEQ, SYS_ioctl, 0, 5));
    emit((struct sock_filter)LOAD(args[1])); /* TIOCSTI and others inject input into a terminal */
    emit((struct sock_filter)IF(BPF_JEQ, TIOCSTI, 1, 0));
    emit((struct sock_filter)IF(BPF_JEQ, TIOCLINUX, 0, 1));
    emit((struct sock_filter)REFUSE(EPERM));
    emit((struct sock_filter)ALLOW);
    emit((struct sock_filter)IF(BPF_JEQ, SYS_personality, 0, 7));
    emit((struct sock_filter)LOAD(args[0]));
    emit((struct sock_filter)IF(BPF_JEQ, 0, 4, 0));
    emit((struct sock_filter)IF(BPF_JEQ, 0x0008, 3, 0));   /* PER_LINUX32 */
    emit((struct sock_filter)IF(BPF_JEQ, 0x40000, 2, 0));  /* ADDR_NO_RANDOMIZE: debuggers */
    emit((struct sock_filter)IF(BPF_JEQ, 0xffffffff, 1, 0)); /* asks */
    emit((struct sock_filter)REFUSE(EPERM));
    emit((struct sock_filter)ALLOW);
}

/* Process 1 is the guest: what may be set for any process must not be set for that one. */
static void emit_guest_protection(void) {
    static const int setters[] = {SYS_prlimit64, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr,
                                  SYS_sched_setaffinity};
    for (size_t i = 0; i < sizeof setters / sizeof *setters; i++) {
        emit((struct sock_filter)IF(BPF_JEQ, setters[i], 0, 4));
        emit((struct sock_filter)LOAD(args[0]));
        emit((struct sock_filter)IF(BPF_JEQ, 1, 0, 1));
        emit((struct sock_filter)REFUSE(EPERM));
        emit((struct sock_filter)ALLOW);
    }
}

/* Neighbouring numbers as one range. */
static int find_ranges(const int *numbers, struct range *ranges) {
    int count = 0;
    for (int i = 0; i < ALLOWED; i++) {
        struct range *last = count > 0 ? &ranges[count - 1] : NULL;
        /* No range reaches over the border between the two ways of refusing. */
        if (last && numbers[i] <= last->last + 1 && numbers[i] != FIRST_RECENT) last->last = numbers[i];
        else ranges[count++] = (struct range){numbers[i], numbers[i]};
    }
    return count;
}

/* A search tree: when the filter is installed, the kernel tries it with every number that there is. */
static void emit_tree(const struct range *ranges, int count) {
    if (count == 1) {
        emit((struct sock_filter)IF(BPF_JGE, ranges->first, 0, 2));
        emit((struct sock_filter)IF(BPF_JGT, ranges->last, 1, 0));
        emit((struct sock_filter)ALLOW);
        if (ranges->first >= FIRST_RECENT) emit((struct sock_filter)REFUSE(ENOSYS));
        else emit((struct sock_filter)REFUSE(EPERM));
        return;
    }
    int half = count / 2;
    unsigned short choice = used;
    emit((struct sock_filter)IF(BPF_JGE, ranges[half].first, 0, 0));
    emit_tree(ranges, half);
    code[choice].jt = (uint8_t)(used - choice - 1);
    emit_tree(ranges + half, count - half);
}

static bool build(struct sock_fprog *program, bool netlink) {
    static int sorted[ALLOWED];
    static struct range ranges[ALLOWED];
    for (int i = 0; i < ALLOWED; i++) sorted[i] = allowed[i];
    qsort(sorted, ALLOWED, sizeof *sorted, by_number);
    code = calloc(MOST_INSTRUCTIONS, sizeof *code);
    used = 0;
    if (!code) return false;
    emit_architecture();
    emit_absent();
    emit_processes();
    emit_sockets(netlink);
    emit_arguments();
    emit_guest_protection();
    emit_tree(ranges, find_ranges(sorted, ranges));
    *program = (struct sock_fprog){.len = used, .filter = code};
    return true;
}

bool filters_build(struct filters *filters) {
    return build(&filters->usual, true) && build(&filters->without_netlink, false);
}

bool filters_install(const struct filters *filters, int listeners) {
    unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filters->usual);
    if (listener < 0 && errno == EBUSY)
        return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filters->without_netlink) == 0;
    if (listener < 0) return false;
    netlinks_hand_over(listeners, listener); /* if that fails, the cell only lacks netlink sockets */
    close(listener);
    return true;
}
