/* Input: INPUT frames to a command's stdin, at most 64 KiB on the way for each action, or to a socket. */
#ifndef DUTYFREE_INPUT_H
#define DUTYFREE_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "loop.h"

enum { INPUT_WINDOW_BYTES = 64 * 1024, SOCKET_WINDOW_BYTES = 256 * 1024 };

struct action;

struct intake {
    struct watch watch;
    uint8_t *held; /* a window of memory, there only while the command is slower than the host */
    uint32_t held_start;
    uint32_t held_bytes;
    uint32_t capacity_bytes;
    uint32_t window_bytes; /* that the host may still send */
    uint32_t taken_bytes;  /* by the command, and not yet given back as credit */
    bool complete;         /* INPUT_END was received */
    bool terminal;
    bool socket;
    int error; /* of a write, or 0 */
};

void intake_open(struct intake *intake, int fd, bool terminal);
void intake_open_socket(struct intake *intake, int fd);
/* False when the host has sent more than its credit allows. */
bool intake_receive(struct intake *intake, const uint8_t *bytes, uint32_t length);
/* Write what the command takes, give credit for it, close after the last byte. */
void intake_pump(struct action *action);
void intake_close(struct intake *intake);

#endif
