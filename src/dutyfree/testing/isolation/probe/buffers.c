/* Memory in socket buffers: one side fills them, and no process reads them. */
#include "probe.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { MIB = 1024 * 1024, BUFFER = 4 * MIB, MOST_SOCKETS = 4096, MOST_SENDS = 20000, BLOCK = 32 * 1024 };

static char block[BLOCK];
static int sockets[MOST_SOCKETS];
static int count;

static int keep(int descriptor)
{
    int size = BUFFER;
    if (descriptor < 0 || count == MOST_SOCKETS)
        return -1;
    setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    return sockets[count++] = descriptor;
}

static long held_bytes(void)
{
    long bytes = 0;
    for (int i = 0; i < count; i++) {
        uint32_t memory[SK_MEMINFO_VARS] = {0};
        socklen_t size = sizeof memory;
        if (getsockopt(sockets[i], SOL_SOCKET, SO_MEMINFO, memory, &size) == 0)
            bytes += memory[SK_MEMINFO_RMEM_ALLOC] + memory[SK_MEMINFO_WMEM_QUEUED];
    }
    return bytes;
}

/* A message from one program to another. */
static bool fill_netlink_user(void)
{
    static int sender = -1;
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    socklen_t size = sizeof address;
    int receiver = keep(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK));
    if (receiver < 0 || bind(receiver, (struct sockaddr *)&address, sizeof address) < 0 ||
        getsockname(receiver, (struct sockaddr *)&address, &size) < 0)
        return false;
    if (sender < 0)
        sender = keep(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK));
    for (int i = 0; i < MOST_SENDS; i++)
        if (sendto(sender, block, sizeof block, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address) < 0)
            break;
    return true;
}

/* Replies of the kernel to requests. */
static bool fill_netlink_route(void)
{
    struct {
        struct nlmsghdr header;
        struct rtgenmsg body;
    } question = {{sizeof question, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_UNSPEC}};
    int asker = keep(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    if (asker < 0)
        return false;
    for (int i = 0; i < MOST_SENDS; i++)
        if (send(asker, &question, sizeof question, MSG_DONTWAIT) < 0)
            break;
    return true;
}

static bool fill_udp(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int receiver = keep(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (receiver < 0 || bind(receiver, (struct sockaddr *)&address, sizeof address) < 0 ||
        getsockname(receiver, (struct sockaddr *)&address, &size) < 0)
        return false;
    for (int i = 0; i < 2 * BUFFER / BLOCK; i++) /* the kernel silently drops what does not fit */
        sendto(receiver, block, sizeof block, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address);
    return true;
}

static bool fill_tcp(void)
{
    static int server = -1;
    static struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    if (server < 0) {
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        server = keep(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (server < 0 || bind(server, (struct sockaddr *)&address, sizeof address) < 0 || listen(server, 8) < 0 ||
            getsockname(server, (struct sockaddr *)&address, &size) < 0)
            return false;
    }
    int client = keep(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (client < 0 || connect(client, (struct sockaddr *)&address, sizeof address) < 0 ||
        keep(accept(server, NULL, NULL)) < 0)
        return false;
    for (int i = 0; i < MOST_SENDS; i++)
        if (send(client, block, sizeof block, MSG_DONTWAIT) < 0)
            break;
    return true;
}

/* Answers how many MiB were in buffers at once, up to about the requested number. */
static void fill_sockets(char **arguments)
{
    static const struct {
        const char *name;
        bool (*fill)(void);
    } kinds[] = {{"netlink-user", fill_netlink_user}, {"netlink-route", fill_netlink_route},
                 {"udp", fill_udp}, {"tcp", fill_tcp}};
    long most = (long)number(arguments[1]) * MIB, held = 0;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, arguments[0]) != 0)
            continue;
        while (held < most && kinds[i].fill())
            held = held_bytes();
        held = held_bytes();
        char text[32];
        snprintf(text, sizeof text, "%ld", held / MIB);
        value(text);
    }
    broken("no such kind of socket");
}

const struct probe buffer_probes[] = {
    {"fill-sockets", 2, fill_sockets},
    {NULL, 0, NULL},
};
