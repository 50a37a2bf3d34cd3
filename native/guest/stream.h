/* The one stream to the host: bounded buffers in both directions, frames out, frames in.
 *
 * Nothing is allocated: both buffers are static, and pages of them that were used are given back when nothing runs. */
#ifndef DUTYFREE_STREAM_H
#define DUTYFREE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/fields.h"
#include "../common/frame.h"

/* Whether the host has sent something that was not read yet. */
bool stream_has_input(void);
bool stream_open(int in_fd, int out_fd);

void stream_send(enum frame_kind kind, uint32_t id, const void *payload, size_t length);
void stream_send_fields(enum frame_kind kind, uint32_t id, const struct field_writer *fields);

/* Room for the bytes of one OUTPUT frame, to be read into: then the bytes are committed as a frame, or dropped. */
uint8_t *stream_data_room(void);
void stream_data_commit(uint32_t id, uint8_t stream, size_t length);
void stream_data_drop(size_t length);

/* Whether more output may be read for the host. When it becomes true again, actions_resume is called. */
bool stream_has_room(void);
void stream_flush(void);

/* Send the host the reason as a fault, and stop. */
void stream_fault(const char *text);
/* Take and send nothing more, and stop. */
void stream_end(void);
/* Return the unused memory of the buffers to the kernel. */
void stream_trim(void);

#endif
