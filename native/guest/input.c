#include "input.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "action.h"
#include "stream.h"

static void intake_ready(struct watch *watch, uint32_t events) {
    (void)events;
    action_queue((struct action *)((char *)watch - offsetof(struct action, intake.watch)));
}

void intake_open(struct intake *intake, int fd, bool terminal) {
    *intake = (struct intake){
        .watch = {.fd = fd, .ready = intake_ready}, .capacity_bytes = INPUT_WINDOW_BYTES,
        .window_bytes = INPUT_WINDOW_BYTES, .terminal = terminal};
}

void intake_open_socket(struct intake *intake, int fd) {
    intake_open(intake, fd, false);
    intake->capacity_bytes = intake->window_bytes = SOCKET_WINDOW_BYTES;
    intake->socket = true;
}

void intake_close(struct intake *intake) {
    watch_close(&intake->watch);
    free(intake->held);
    intake->held = NULL;
    intake->held_bytes = 0;
}

/* The command no longer reads: input that arrives counts as taken. */
static void discard(struct intake *intake) {
    intake->taken_bytes += intake->held_bytes;
    intake_close(intake);
}

/* As many bytes as the command takes at once. */
static uint32_t give(struct intake *intake, const uint8_t *bytes, uint32_t length) {
    while (true) {
        ssize_t written = write(intake->watch.fd, bytes, length);
        if (written >= 0) return (uint32_t)written;
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return 0;
        intake->error = errno;
        discard(intake);
        return length;
    }
}

bool intake_receive(struct intake *intake, const uint8_t *bytes, uint32_t length) {
    if (length > intake->window_bytes) return false;
    intake->window_bytes -= length;
    uint32_t given = 0;
    if (intake->watch.fd >= 0 && intake->held_bytes == 0) given = give(intake, bytes, length);
    if (intake->watch.fd < 0) given = length;
    intake->taken_bytes += given;
    if (given == length) return true;
    if (intake->held == NULL) intake->held = malloc(intake->capacity_bytes);
    if (intake->held == NULL) {
        discard(intake);
        intake->taken_bytes += length - given;
        return true;
    }
    if (intake->held_start > 0) {
        memmove(intake->held, intake->held + intake->held_start, intake->held_bytes);
        intake->held_start = 0;
    }
    memcpy(intake->held + intake->held_bytes, bytes + given, length - given);
    intake->held_bytes += length - given;
    return true;
}

static void give_held(struct intake *intake) {
    uint32_t given = give(intake, intake->held + intake->held_start, intake->held_bytes);
    if (intake->watch.fd < 0) return;
    intake->taken_bytes += given;
    intake->held_start += given;
    intake->held_bytes -= given;
    if (intake->held_bytes > 0) return;
    free(intake->held);
    intake->held = NULL;
    intake->held_start = 0;
}

/* A terminal has no end of file, only the EOT character. */
static void end_input(struct intake *intake) {
    struct termios settings;
    uint8_t end = 4;
    if (intake->terminal && tcgetattr(intake->watch.fd, &settings) == 0) end = settings.c_cc[VEOF];
    if (intake->terminal && end != 0) give(intake, &end, 1);
    if (intake->socket) shutdown(intake->watch.fd, SHUT_WR); /* the other copy is still read */
    intake_close(intake);
}

void intake_pump(struct action *action) {
    struct intake *intake = &action->intake;
    if (intake->watch.fd >= 0 && intake->held_bytes > 0) give_held(intake);
    if (intake->watch.fd >= 0 && intake->complete && intake->held_bytes == 0) end_input(intake);
    watch_arm(&intake->watch, intake->held_bytes > 0 ? EPOLLOUT : 0);
    if (intake->socket && intake->taken_bytes < intake->capacity_bytes / 4) return; /* the host has at least as much */
    if (intake->taken_bytes == 0 || intake->complete || !stream_has_room()) return; /* credit can wait, and adds up */
    uint8_t payload[16];
    struct field_writer fields;
    fields_write(&fields, payload, sizeof payload);
    fields_put_number(&fields, 1, intake->taken_bytes);
    stream_send_fields(GUEST_INPUT_CREDIT, action->id, &fields);
    intake->window_bytes += intake->taken_bytes;
    intake->taken_bytes = 0;
}
