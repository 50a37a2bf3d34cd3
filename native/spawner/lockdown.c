/* Giving up every privilege, one after the other, and becoming the guest. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

bool map_ids(pid_t pid, uint64_t outside, uint64_t count) {
    char path[48], map[64];
    snprintf(map, sizeof map, "0 %llu %llu\n", (unsigned long long)outside, (unsigned long long)count);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, i == 0 ? "uid_map" : "gid_map");
        if (!write_file(path, map)) return false;
    }
    return true;
}

/* The answer takes microseconds, so polling is faster than sleeping. */
static bool await_answer(int status, char *answer) {
    for (int64_t deadline_ms = now_ms() + 2; now_ms() < deadline_ms; sched_yield()) {
        ssize_t got = recv(status, answer, 1, MSG_DONTWAIT);
        if (got >= 0) return got == 1;
        if (errno != EAGAIN) return false;
    }
    return recv(status, answer, 1, 0) == 1;
}

static bool ask_for_ids(int status, int kept) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.align = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char word = 'u';
    struct iovec part = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (kept >= 0) {
        memcpy(CMSG_DATA(&control.align), &kept, sizeof kept);
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
    }
    return sendmsg(status, &message, MSG_NOSIGNAL) == 1;
}

/* The kernel also charges what a namespace's processes use (inotify instances, say) to the id that made it. An id that no
 * other cell has keeps one cell from using up what the host's root, or another cell, needs. */
static bool enter_user_namespace(int status, uid_t account, int kept) {
    char answer;
    if (account != 0 && (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0 ||
                         setresgid(account, account, account) < 0 || setresuid(account, account, account) < 0))
        return false;
    if (unshare(CLONE_NEWUSER) < 0) return false;
    if (!ask_for_ids(status, kept) || !await_answer(status, &answer)) return false;
    if (answer != 'y') {
        errno = answer;
        return false;
    }
    /* Without a range of ids there is only one group, and the kernel forbids changing the list of groups. */
    if (setgroups(0, NULL) < 0 && errno != EPERM) return false;
    return setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0;
}

static bool keep_capabilities(uint64_t mask) {
    for (unsigned long capability = 0; capability < 64; capability++) {
        if (mask >> capability & 1) continue;
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) continue;
        if (errno != EINVAL) return false;
        break; /* the kernel knows no more than these */
    }
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = (uint32_t)mask, .permitted = (uint32_t)mask},
                                             {.effective = (uint32_t)(mask >> 32), .permitted = (uint32_t)(mask >> 32)}};
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, data) == 0;
}

static bool only_the_stream(int stream, int *guest) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) return false;
    /* Above what is about to be replaced, whatever their numbers are. */
    int high_stream = fcntl(stream, F_DUPFD_CLOEXEC, 64), high_guest = fcntl(*guest, F_DUPFD_CLOEXEC, 64);
    if (high_stream < 0 || high_guest < 0) return false;
    for (int fd = 0; fd < 3; fd++)
        if (dup2(null, fd) < 0) return false;
    if (dup2(high_stream, 3) < 0) return false;
    *guest = high_guest;
    return syscall(SYS_close_range, 4U, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
}

static void default_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    const int ignored[] = IGNORED_SIGNALS;
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) (void)signal(ignored[i], SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

void lockdown_and_exec(const struct lockdown *lockdown, struct step *step) {
    struct arguments user, caps, guest;
    int guest_file = lockdown->guest;
    if (!arguments_of(lockdown->caps, 1, &caps, step) || !arguments_of(lockdown->exec, 3, &guest, step)) return;
    if (lockdown->user && !arguments_of(lockdown->user, 4, &user, step)) return;
    if (lockdown->user && !enter_user_namespace(lockdown->status, (uid_t)number_of(user.text[2]), lockdown->kept)) {
        step_failed(step, OP_USER, errno, "user namespace");
        return;
    }
    if (!keep_capabilities(number_of(caps.text[0]))) {
        step_failed(step, OP_CAPS, errno, "capabilities");
        return;
    }
    umask(022);
    default_signals();
    if (!only_the_stream(lockdown->stream, &guest_file)) {
        step_failed(step, OP_EXEC, errno, "/dev/null");
        return;
    }
    (void)setrlimit(RLIMIT_NOFILE, lockdown->files);
    /* Changing ids has cleared it; before the filter, so that the order of privileges lost stays simple. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char word;
    if (recv(lockdown->status, &word, 1, MSG_PEEK | MSG_DONTWAIT) == 0) _exit(127); /* the spawner has died meanwhile */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || !filters_install(lockdown->filters, lockdown->listeners)) {
        step_failed(step, OP_EXEC, errno, "seccomp");
        return;
    }
    char *argv[] = {(char *)guest.text[0], (char *)guest.text[1], (char *)guest.text[2], NULL};
    char *environment[] = {NULL};
    syscall(SYS_execveat, guest_file, "", argv, environment, AT_EMPTY_PATH);
    step_failed(step, OP_EXEC, errno, "the guest");
}
