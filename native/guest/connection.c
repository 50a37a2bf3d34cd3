#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"
#include "clock.h"
#include "dispatch.h"
#include "stream.h"

enum { LISTEN_QUEUE = 128, DATAGRAM_MAX_BYTES = 4096 };

enum state { CONNECTING, LISTENING, ACCEPTING, STREAMING, DATAGRAMS };

struct connection {
    struct action *action;
    enum state state;
    struct watch watch;        /* of a socket that is not a byte stream, or not yet */
    sa_family_t family;
    struct connection *first;  /* LISTENING: the ACCEPTs that wait, in their order */
    struct connection *next;   /* ACCEPTING */
    struct connection *listener;
    bool killed;
    bool output_ended; /* the host knows */
};

static struct connection *of_watch(struct watch *watch) {
    return (struct connection *)((char *)watch - offsetof(struct connection, watch));
}

static enum refusal refusal_of(enum state state, int error) {
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) return REFUSED_CAPACITY;
    return state == CONNECTING ? REFUSED_CONNECT : REFUSED_LISTEN;
}

static void give_up(struct connection *connection, int error) {
    refuse(connection->action->id, error, refusal_of(connection->state, error), NULL);
    action_discard(connection->action);
}

static void put_address(struct field_writer *fields, uint8_t tag, const struct address *address) {
    char text[INET6_ADDRSTRLEN];
    uint16_t port;
    address_print(address, text, &port);
    fields_put_text(fields, tag, text);
    fields_put_number(fields, (uint8_t)(tag + 1), port);
}

static bool name_of(int fd, int (*ask)(int, struct sockaddr *, socklen_t *), struct address *address) {
    address->length = sizeof address->v6;
    return ask(fd, &address->any, &address->length) == 0 &&
           (address->any.sa_family == AF_INET || address->any.sa_family == AF_INET6);
}

/* STARTED with the far address, if there is one, and the near one. */
static void announce(const struct action *action, const struct address *peer, const struct address *local) {
    uint8_t payload[160];
    struct field_writer fields;
    fields_write(&fields, payload, sizeof payload);
    if (peer != NULL) put_address(&fields, 1, peer);
    put_address(&fields, peer != NULL ? 3 : 1, local);
    stream_send_fields(GUEST_STARTED, action->id, &fields);
}

/* The socket is connected: from now on it is the action's output and input. Takes `fd`. */
static void stream_bytes(struct connection *connection, int fd) {
    struct action *action = connection->action;
    struct address peer, local;
    int on = 1;
    bool known = name_of(fd, getpeername, &peer) && name_of(fd, getsockname, &local);
    /* A port without a server, dialled from itself by chance: TCP connects a socket to itself. */
    if (known && address_same(&peer, &local)) errno = ECONNREFUSED;
    bool fit = known && !address_same(&peer, &local);
    /* A copy of its own for each direction: epoll knows a descriptor only once. */
    int copy = fit ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (copy < 0) {
        int error = errno;
        close(fd);
        give_up(connection, error);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->state = STREAMING;
    timer_clear(&action->timer);
    outlet_open(&action->own_outlets[0], fd, 1, false, action);
    intake_open_socket(&action->intake, copy);
    announce(action, &peer, &local);
    outlet_take(&action->own_outlets[0]); /* a client's first bytes are often here: they go with the announcement */
    action_queue(action);
}

static void connected(struct watch *watch, uint32_t events) {
    (void)events;
    struct connection *connection = of_watch(watch);
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) {
        give_up(connection, error);
        return;
    }
    watch_arm(watch, 0);
    int fd = watch->fd;
    *watch = (struct watch)WATCH_CLOSED;
    stream_bytes(connection, fd);
}

static void expired(struct timer *timer) {
    give_up(action_of_timer(timer)->connection, ETIMEDOUT);
}

/* Only addresses of the sandbox itself can be bound. */
static bool is_local(const struct address *address) {
    if (address_is_loopback(address)) return true;
    struct address place = *address;
    if (place.any.sa_family == AF_INET) place.v4.sin_port = 0;
    else place.v6.sin6_port = 0;
    int fd = socket(place.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool bound = bind(fd, &place.any, place.length) == 0;
    int error = errno;
    close(fd);
    errno = error;
    return bound;
}

static void dial(struct connection *connection, const struct address *address) {
    int fd = is_local(address) ? socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (fd < 0) {
        give_up(connection, errno);
        return;
    }
    if (connect(fd, &address->any, address->length) == 0) {
        stream_bytes(connection, fd);
        return;
    }
    int error = errno;
    connection->watch = (struct watch){.fd = fd, .ready = connected};
    if (error != EINPROGRESS) give_up(connection, error);
    else if (!watch_arm(&connection->watch, EPOLLOUT)) give_up(connection, errno);
}

/* Give the connections that have come to the ACCEPTs that wait; the rest stay in the kernel's queue. */
static void accept_waiting(struct connection *listener) {
    while (listener->first != NULL) {
        int fd = accept4(listener->watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        bool lack = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        if (fd < 0 && !lack) continue; /* that connection has failed already */
        int error = errno;
        struct connection *waiting = listener->first;
        listener->first = waiting->next;
        waiting->listener = NULL;
        if (fd < 0) give_up(waiting, error);
        else stream_bytes(waiting, fd);
    }
    watch_arm(&listener->watch, listener->first != NULL ? EPOLLIN : 0);
}

static void came(struct watch *watch, uint32_t events) {
    (void)events;
    accept_waiting(of_watch(watch));
}

static void listen_on(struct connection *connection, const struct address *address) {
    struct address local;
    int on = 1;
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    connection->watch = (struct watch){.fd = fd, .ready = came};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, &address->any, address->length) != 0 || listen(fd, LISTEN_QUEUE) != 0 ||
        !name_of(fd, getsockname, &local)) {
        give_up(connection, errno);
        return;
    }
    timer_clear(&connection->action->timer);
    announce(connection->action, NULL, &local);
}

static void accept_from(struct connection *connection, uint64_t id) {
    struct action *action = id > UINT32_MAX ? NULL : action_find((uint32_t)id);
    struct connection *listener = action == NULL ? NULL : action->connection;
    if (listener == NULL || listener->state != LISTENING || listener->killed) {
        give_up(connection, EBADF);
        return;
    }
    struct connection **end = &listener->first;
    while (*end != NULL) end = &(*end)->next;
    *end = connection;
    connection->listener = listener;
    accept_waiting(listener);
}

/* One datagram for the host, its sender in front; false when there is none. */
static bool pass_on(struct connection *connection) {
    struct action *action = connection->action;
    size_t prefix = address_prefix_bytes(connection->family);
    uint8_t *room = stream_data_room();
    struct address sender = {.length = sizeof sender.v6};
    ssize_t got = recvfrom(connection->watch.fd, room + prefix, DATAGRAM_MAX_BYTES, MSG_DONTWAIT | MSG_TRUNC, &sender.any,
                           &sender.length);
    if (got < 0) return errno == EINTR;
    if (got > DATAGRAM_MAX_BYTES || sender.any.sa_family != connection->family) return true;
    address_prefix_write(&sender, room);
    size_t bytes = prefix + (size_t)got;
    action->produced[0] += bytes;
    action->sent += bytes;
    action->credit -= bytes;
    stream_data_commit(action->id, 1, bytes);
    return true;
}

static bool has_room(const struct action *action) {
    return action->credit >= ADDRESS_PREFIX_MAX_BYTES + DATAGRAM_MAX_BYTES && stream_has_room();
}

static void arrived(struct watch *watch, uint32_t events) {
    (void)events;
    struct connection *connection = of_watch(watch);
    while (has_room(connection->action) && pass_on(connection)) continue;
    action_queue(connection->action);
}

static void take_datagrams(struct connection *connection, const struct address *address) {
    struct address local;
    int fd = socket(address->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    connection->watch = (struct watch){.fd = fd, .ready = arrived};
    if (fd < 0 || bind(fd, &address->any, address->length) != 0 || !name_of(fd, getsockname, &local)) {
        give_up(connection, errno);
        return;
    }
    timer_clear(&connection->action->timer);
    announce(connection->action, NULL, &local);
    action_queue(connection->action);
}

static const enum state BEGINNINGS[] = {CONNECTING, LISTENING, ACCEPTING, DATAGRAMS};

void connection_start(uint32_t id, const struct request *request) {
    struct address address = {0};
    bool accepts = request->mode == MODE_ACCEPT;
    if (!accepts && !address_parse(&address, request->argv[0], request->argv[1])) {
        refuse(id, EINVAL, REFUSED_REQUEST, "not an address and a port");
        return;
    }
    struct action *action = action_new(id, request);
    struct connection *connection = action == NULL ? NULL : calloc(1, sizeof *connection);
    if (connection == NULL) {
        refuse(id, errno, REFUSED_CAPACITY, NULL);
        if (action != NULL) action_discard(action);
        return;
    }
    *connection = (struct connection){.action = action,
                                      .state = BEGINNINGS[request->mode - MODE_DIAL],
                                      .watch = WATCH_CLOSED,
                                      .family = address.any.sa_family};
    action->connection = connection;
    action_watch_deadline(action, request->timeout_ms, expired);
    switch (connection->state) {
    case CONNECTING: dial(connection, &address); break;
    case LISTENING: listen_on(connection, &address); break;
    case ACCEPTING: accept_from(connection, request->session); break;
    default: take_datagrams(connection, &address); break;
    }
}

/* A datagram that cannot be sent is lost, as datagrams are. */
static const char *send_datagram(struct connection *connection, const uint8_t *bytes, uint32_t length) {
    struct intake *intake = &connection->action->intake;
    struct address to;
    if (length > intake->window_bytes) return "more input than the credit allows";
    size_t prefix = address_prefix_read(&to, bytes, length);
    if (prefix == 0) return "a datagram without its destination";
    intake->window_bytes -= length;
    intake->taken_bytes += length;
    if (length - prefix > DATAGRAM_MAX_BYTES || to.any.sa_family != connection->family) return NULL;
    ssize_t sent;
    do {
        sent = sendto(connection->watch.fd, bytes + prefix, length - prefix, MSG_DONTWAIT | MSG_NOSIGNAL, &to.any, to.length);
    } while (sent < 0 && errno == EINTR);
    return NULL;
}

const char *connection_receive(struct action *action, const uint8_t *bytes, uint32_t length) {
    struct connection *connection = action->connection;
    if (connection->state == DATAGRAMS) return send_datagram(connection, bytes, length);
    if (connection->state != STREAMING) return "input for a connection that is not up";
    return intake_receive(&action->intake, bytes, length) ? NULL : "more input than the credit allows";
}

void connection_signal(struct action *action, int number) {
    if (number != SIGKILL) return;
    action->connection->killed = true;
    action_queue(action);
}

/* Both directions are done, or one has failed and there is nothing left to read. */
static bool stream_settle(struct action *action) {
    struct connection *connection = action->connection;
    const struct outlet *outlet = &action->own_outlets[0];
    const struct intake *intake = &action->intake;
    int error = outlet->error != 0 ? outlet->error : intake->error;
    bool read_out = outlet->watch.fd < 0;
    if (read_out && error == 0 && !connection->output_ended) {
        connection->output_ended = true;
        stream_send(GUEST_OUTPUT_END, action->id, NULL, 0);
    }
    if (!connection->killed && !(read_out && (error != 0 || intake->watch.fd < 0))) return false;
    action->wait_status = (connection->killed ? 0 : error == EPIPE ? ECONNRESET : error) << 8;
    return true;
}

bool connection_settle(struct action *action) {
    struct connection *connection = action->connection;
    intake_pump(action);
    bool over = connection->killed;
    if (connection->state == STREAMING) over = stream_settle(action);
    if (over && stream_has_room()) {
        action->execute_ns = now_ns() - action->started_ns;
        return true;
    }
    if (connection->state == STREAMING) outlet_arm(&action->own_outlets[0]);
    if (connection->state == DATAGRAMS) watch_arm(&connection->watch, has_room(action) ? EPOLLIN : 0);
    return false;
}

void connection_close(struct action *action) {
    struct connection *connection = action->connection;
    if (connection->listener != NULL) {
        struct connection **at = &connection->listener->first;
        while (*at != connection) at = &(*at)->next;
        *at = connection->next;
        if (connection->listener->first == NULL) watch_arm(&connection->listener->watch, 0);
        connection->listener = NULL;
    }
    watch_close(&connection->watch);
    while (connection->first != NULL) {
        struct connection *waiting = connection->first;
        connection->first = waiting->next;
        waiting->listener = NULL;
        give_up(waiting, ECANCELED);
    }
}
