/* Which network addresses and sockets the sandbox can reach. */
#include "probe.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { CONNECT_WAIT_MS = 1000 };

static void connect_tcp(char **arguments)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(arguments[1]))};
    if (inet_pton(AF_INET, arguments[0], &address.sin_addr) != 1)
        broken("not an address");
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (client < 0)
        denied(errno);
    if (connect(client, (struct sockaddr *)&address, sizeof address) == 0)
        allowed(NULL);
    struct pollfd wait = {.fd = client, .events = POLLOUT};
    if (errno != EINPROGRESS)
        denied(errno);
    if (poll(&wait, 1, CONNECT_WAIT_MS) == 0)
        denied(ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error)
        denied(error);
    allowed(NULL);
}

static void send_udp(char **arguments)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9)};
    if (inet_pton(AF_INET, arguments[0], &address.sin_addr) != 1)
        broken("not an address");
    int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sender < 0)
        denied(errno);
    judge(connect(sender, (struct sockaddr *)&address, sizeof address)); /* looks the route up, sends nothing */
}

static void interfaces_up(char **arguments)
{
    (void)arguments;
    struct ifaddrs *all = NULL;
    char text[512] = "";
    if (getifaddrs(&all) < 0)
        denied(errno);
    for (struct ifaddrs *one = all; one; one = one->ifa_next)
        if ((one->ifa_flags & IFF_UP) && !strstr(text, one->ifa_name)) {
            strncat(text, *text ? " " : "", sizeof text - strlen(text) - 1);
            strncat(text, one->ifa_name, sizeof text - strlen(text) - 1);
        }
    value(text);
}

/* Writes back the flags that lo already has. */
static void configure_network(char **arguments)
{
    (void)arguments;
    struct ifreq request;
    memset(&request, 0, sizeof request);
    strcpy(request.ifr_name, "lo");
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (any < 0 || ioctl(any, SIOCGIFFLAGS, &request) < 0)
        denied(errno);
    judge(ioctl(any, SIOCSIFFLAGS, &request));
}

static _Noreturn void talk_to_self(int family, const struct sockaddr *address, socklen_t size)
{
    struct sockaddr_storage bound;
    socklen_t bound_size = sizeof bound;
    char byte = 'x';
    int server = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || client < 0 || bind(server, address, size) < 0 || listen(server, 1) < 0)
        denied(errno);
    if (getsockname(server, (struct sockaddr *)&bound, &bound_size) < 0)
        denied(errno);
    if (connect(client, (struct sockaddr *)&bound, bound_size) < 0)
        denied(errno);
    int accepted = accept(server, NULL, NULL);
    if (accepted < 0 || write(client, &byte, 1) != 1 || read(accepted, &byte, 1) != 1)
        denied(errno);
    allowed(NULL);
}

static void loopback(char **arguments)
{
    (void)arguments;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    talk_to_self(AF_INET, (struct sockaddr *)&address, sizeof address);
}

static void unix_loopback(char **arguments)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(arguments[0]);
    if (length + 1 > sizeof address.sun_path)
        broken("a socket's name is too long");
    memcpy(address.sun_path, arguments[0], length);
    if (arguments[0][0] == '@')
        address.sun_path[0] = '\0';
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    talk_to_self(AF_UNIX, (struct sockaddr *)&address, size);
}

const struct probe network_probes[] = {
    {"connect-tcp", 2, connect_tcp},
    {"send-udp", 1, send_udp},
    {"interfaces-up", 0, interfaces_up},
    {"configure-network", 0, configure_network},
    {"loopback", 0, loopback},
    {"unix-loopback", 1, unix_loopback},
    {NULL, 0, NULL},
};
