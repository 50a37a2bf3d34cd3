/* What the kernel counts for each user, across all sandboxes. Both limits are the kernel's defaults, and small. */
#include "probe.h"

#include <sys/resource.h>
#include <sys/socket.h>

enum { PIPE_BYTES = 1 << 20, AT_ONCE = 200 };

static long take_pipes(long most)
{
    int ends[2];
    long count = 0;
    /* Past the limit no pipe can be made larger, and new pipes are smaller than usual. */
    while (count < most && pipe2(ends, O_CLOEXEC) == 0) {
        (void)fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES);
        count++;
    }
    return count;
}

static void hold_pipes(char **arguments) { hold(take_pipes, number(arguments[0])); }

static void pipe_bytes(char **arguments)
{
    int ends[2];
    char text[16];
    (void)arguments;
    if (pipe2(ends, O_CLOEXEC) < 0)
        denied(errno);
    snprintf(text, sizeof text, "%d", fcntl(ends[0], F_GETPIPE_SZ));
    value(text);
}

/* Descriptors in flight: sent and not yet received. */
static int send_descriptors(int socket_fd, int count)
{
    char byte = 0, space[CMSG_SPACE(sizeof(int) * AT_ONCE)];
    memset(space, 0, sizeof space);
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                               .cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count)};
    for (int i = 0; i < count; i++)
        memcpy(CMSG_DATA(header) + sizeof(int) * (size_t)i, &socket_fd, sizeof socket_fd);
    return sendmsg(socket_fd, &message, MSG_DONTWAIT) < 0 ? -1 : 0;
}

static long take_flights(long most)
{
    int pair[2];
    long count = 0;
    while (count < most && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0)
        for (int i = 0; i < 4 && count < most; i++) {
            if (send_descriptors(pair[0], AT_ONCE) < 0)
                break;
            count += AT_ONCE;
        }
    return count;
}

static void hold_flights(char **arguments) { hold(take_flights, number(arguments[0])); }

static void take_flight(char **arguments)
{
    int pair[2];
    struct rlimit few = {.rlim_cur = (rlim_t)number(arguments[0]), .rlim_max = (rlim_t)number(arguments[0])};
    if (setrlimit(RLIMIT_NOFILE, &few) < 0 || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) < 0)
        broken("no sockets");
    judge(send_descriptors(pair[0], 1));
}

const struct probe user_probes[] = {
    {"hold-pipes", 1, hold_pipes},
    {"pipe-bytes", 0, pipe_bytes},
    {"hold-flights", 1, hold_flights},
    {"take-flight", 1, take_flight},
    {NULL, 0, NULL},
};
