/* Network namespaces, made ahead of time.
 *
 * Making one takes the kernel longer than the rest of a cell's creation. A separate process makes a few ahead of time;
 * each one is new and is given to exactly one cell. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawner.h"

enum { STOCK = 4 };

bool raise_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (any < 0) return false;
    bool done = ioctl(any, SIOCSIFFLAGS, &request) == 0;
    close(any);
    return done;
}

/* A namespace with a loopback interface and nothing else, in which every user may use the low ports: the kernel asks
 * who made it, and that is not the cell's root. */
static int make_network(void) {
    if (unshare(CLONE_NEWNET) < 0 || !raise_loopback()) return -1;
    (void)write_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* One byte carries the errno, 0 with the descriptor beside it. */
static bool send_network(int socket_fd, int network, char error) {
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = &error, .iov_len = 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (network >= 0) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof control.space;
        struct cmsghdr *extra = CMSG_FIRSTHDR(&header);
        *extra = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(extra), &network, sizeof network);
    }
    return sendmsg(socket_fd, &header, MSG_NOSIGNAL) == 1;
}

static _Noreturn void make_networks(int orders) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int home = make_network(); /* to return to, so that this process does not keep a cell's network alive */
    int refused = home < 0 ? errno : 0; /* then every order gets this answer */
    for (char order; recv(orders, &order, 1, 0) == 1;) {
        int network = refused ? -1 : make_network();
        char error = (char)(refused ? refused : network < 0 ? errno : 0);
        if ((!refused && setns(home, CLONE_NEWNET) < 0) || !send_network(orders, network, error)) break;
        if (network >= 0) close(network);
    }
    _exit(0);
}

bool networks_start(struct networks *networks) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return false;
    networks->maker = fork();
    if (networks->maker == 0) {
        close(pair[0]);
        make_networks(pair[1]);
    }
    close(pair[1]);
    networks->orders = pair[0];
    for (int i = 0; i < STOCK; i++)
        if (send(pair[0], "n", 1, MSG_NOSIGNAL) != 1) return false;
    return networks->maker > 0;
}

int networks_take(const struct networks *networks) {
    char error = EIO;
    int network = -1;
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = &error, .iov_len = 1};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    if (recvmsg(networks->orders, &header, MSG_CMSG_CLOEXEC) == 1) {
        struct cmsghdr *extra = CMSG_FIRSTHDR(&header);
        if (extra && extra->cmsg_level == SOL_SOCKET && extra->cmsg_type == SCM_RIGHTS)
            memcpy(&network, CMSG_DATA(extra), sizeof network);
        (void)send(networks->orders, "n", 1, MSG_NOSIGNAL);
    }
    if (network < 0) errno = error;
    return network;
}

void networks_stop(const struct networks *networks) {
    close(networks->orders);
    if (networks->maker > 0) (void)waitpid(networks->maker, NULL, 0);
}
