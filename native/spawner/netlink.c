/* Netlink sockets for cells: counted, and made by a process of ours.
 *
 * getifaddrs() needs them, so that cells cannot go without; but the kernel charges their receive buffers to no
 * cgroup, and a program can fill them with answers that it never reads. So the seccomp filter forwards each request for
 * one to the keeper, which makes the socket in the cell's network and passes it to the program, as long as the cell has
 * few others. Only the keeper makes them, so concurrent threads cannot get more than that. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spawner.h"

enum {
    MOST_SOCKETS = 16,
    LEAST_SOCKETS = 4,
    MOST_BYTES = 64 << 20, /* what the sockets of one cell may hold, where that leaves it LEAST_SOCKETS */
    BATCH = 8,             /* cells that are served before the keeper takes a rest */
    REST = 3,              /* times as long as it worked: its time is not charged to the cell that asks */
    NOTICE_BYTES = 512,    /* newer kernels may have more to say than our headers know */
};

struct cell_sockets {
    int listener;
    int open; /* an epoll instance used as a counter: the kernel removes a socket from it when its last user closes it */
    int count;
};

static int most = LEAST_SOCKETS;

/* Not ioctl(): its request is an int in musl, which the compiler takes for a mistake. */
static long ask(int listener, unsigned long request, void *argument) {
    return syscall(SYS_ioctl, listener, request, argument);
}

/* A socket holds up to twice net.core.rmem_max. */
static void find_bound(void) {
    char text[32] = "";
    int file = open("/proc/sys/net/core/rmem_max", O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, text, sizeof text - 1) > 0) {
        uint64_t one = 2 * strtoull(text, NULL, 10), fitting = one ? MOST_BYTES / one : 0;
        most = fitting > MOST_SOCKETS ? MOST_SOCKETS : fitting < LEAST_SOCKETS ? LEAST_SOCKETS : (int)fitting;
    }
    if (file >= 0) close(file);
}

/* How many are still open: in a process, or as a descriptor on its way to one. */
static int count_open(const struct cell_sockets *cell) {
    char path[48], line[256];
    int count = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", cell->open);
    FILE *info = fopen(path, "re");
    if (!info) return cell->count;
    while (fgets(line, sizeof line, info)) count += strncmp(line, "tfd:", 4) == 0;
    fclose(info);
    return count;
}

struct order {
    int network;
    int type;
    int made;
    int error;
};

/* In a process that shares descriptors with the keeper, but not its network, to which an ordinary user could not return,
 * nor its capabilities: the kernel also asks what the maker of a socket was allowed to do. */
static int make_there(void *argument) {
    struct order *order = argument;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    bool there = order->network < 0 || setns(order->network, CLONE_NEWNET) == 0;
    if (there && syscall(SYS_capset, &header, none) == 0)
        order->made = socket(AF_NETLINK, order->type | SOCK_CLOEXEC, NETLINK_ROUTE);
    order->error = errno;
    return 0;
}

static int make_in(int network, const struct stat *home, int type) {
    static char stack[16 * 1024] __attribute__((aligned(16)));
    struct stat theirs;
    if (fstat(network, &theirs) < 0) return -1;
    /* A cell with the host's network is where we are. */
    struct order order = {.network = theirs.st_ino == home->st_ino ? -1 : network, .type = type, .made = -1};
    pid_t maker = clone(make_there, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &order);
    if (maker < 0) return -1;
    (void)waitpid(maker, NULL, 0);
    errno = order.error;
    return order.made;
}

static int make_socket(struct cell_sockets *cell, const struct seccomp_notif *wish, const struct stat *home) {
    char path[48];
    uint64_t id = wish->id;
    if (cell->count >= most) cell->count = count_open(cell);
    if (wish->data.nr != SYS_socket || cell->count >= most) {
        errno = wish->data.nr == SYS_socket ? ENOBUFS : EOPNOTSUPP; /* netlink has no pairs */
        return -1;
    }
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)wish->pid);
    int network = open(path, O_RDONLY | O_CLOEXEC);
    if (network < 0) return -1;
    /* Still waiting: what was opened is not of another process with the same number. */
    bool waits = ask(cell->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
    int made = waits ? make_in(network, home, (int)wish->data.args[1]) : -1, error = errno;
    close(network);
    errno = error;
    return made;
}

static void answer(struct cell_sockets *cell, const struct stat *home) {
    union {
        struct seccomp_notif notice;
        char space[NOTICE_BYTES];
    } wish = {.space = {0}};
    if (ask(cell->listener, SECCOMP_IOCTL_NOTIF_RECV, &wish) < 0) return; /* a signal has ended it */
    if (cell->open < 0) cell->open = epoll_create1(EPOLL_CLOEXEC); /* most cells never want one */
    struct epoll_event silence = {.events = 0};
    int made = make_socket(cell, &wish.notice, home);
    bool counted = made >= 0 && epoll_ctl(cell->open, EPOLL_CTL_ADD, made, &silence) == 0;
    struct seccomp_notif_addfd addition = {
        .id = wish.notice.id,
        .flags = SECCOMP_ADDFD_FLAG_SEND,
        .srcfd = (uint32_t)made,
        .newfd_flags = wish.notice.data.args[1] & SOCK_CLOEXEC ? O_CLOEXEC : 0};
    if (!counted || ask(cell->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addition) < 0) {
        struct seccomp_notif_resp refusal = {.id = wish.notice.id, .error = -errno};
        (void)ask(cell->listener, SECCOMP_IOCTL_NOTIF_SEND, &refusal);
    }
    cell->count += counted;
    if (made >= 0) close(made);
}

/* Out of the event loop first: a cell that dies as it is born holds a copy, which would keep the event alive. */
static void forget(struct cell_sockets *cell, int epoll) {
    (void)epoll_ctl(epoll, EPOLL_CTL_DEL, cell->listener, NULL);
    close(cell->listener);
    if (cell->open >= 0) close(cell->open);
    free(cell);
}

static bool take_listener(int listeners, int epoll) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    char word;
    struct iovec part = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    if (recvmsg(listeners, &message, MSG_CMSG_CLOEXEC) <= 0) return false; /* the spawner is gone */
    struct cmsghdr *extra = CMSG_FIRSTHDR(&message);
    if (!extra || extra->cmsg_type != SCM_RIGHTS) return true;
    int listener;
    memcpy(&listener, CMSG_DATA(extra), sizeof listener);
    struct cell_sockets *cell = malloc(sizeof *cell);
    if (!cell) {
        close(listener); /* the cell gets no such sockets */
        return true;
    }
    *cell = (struct cell_sockets){.listener = listener, .open = -1};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = cell};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0) forget(cell, epoll);
    return true;
}

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static _Noreturn void keep(int listeners) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_all_but(&listeners, 1);
    find_bound();
    struct stat home;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event events[BATCH], orders = {.events = EPOLLIN, .data.ptr = NULL};
    bool serving = stat("/proc/self/ns/net", &home) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, listeners, &orders) == 0;
    while (serving) {
        int count = epoll_wait(epoll, events, BATCH, -1);
        bool answered = false;
        int64_t began_us = now_us();
        for (int i = 0; i < count; i++) {
            struct cell_sockets *cell = events[i].data.ptr;
            if (!cell) serving = take_listener(listeners, epoll);
            else if (events[i].events & EPOLLIN) answer(cell, &home), answered = true;
            else forget(cell, epoll); /* nothing of it runs any more */
        }
        if (answered) usleep((useconds_t)(REST * (now_us() - began_us)));
    }
    _exit(0);
}

bool netlinks_start(struct netlinks *netlinks) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return false;
    netlinks->keeper = fork();
    if (netlinks->keeper == 0) {
        close(pair[0]);
        keep(pair[1]);
    }
    close(pair[1]);
    netlinks->listeners = pair[0];
    return netlinks->keeper > 0;
}

void netlinks_hand_over(int listeners, int listener) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.align = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char word = 'l';
    struct iovec part = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    memcpy(CMSG_DATA(&control.align), &listener, sizeof listener);
    (void)!sendmsg(listeners, &message, MSG_NOSIGNAL);
}

void netlinks_stop(const struct netlinks *netlinks) {
    close(netlinks->listeners);
    if (netlinks->keeper <= 0) return;
    kill(netlinks->keeper, SIGKILL); /* it has nothing to clean up */
    (void)waitpid(netlinks->keeper, NULL, 0);
}
