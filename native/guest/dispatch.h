#ifndef DUTYFREE_DISPATCH_H
#define DUTYFREE_DISPATCH_H

#include <stdint.h>

#include "../common/frame.h"

enum refusal {
    REFUSED_REQUEST = 1,
    REFUSED_CAPACITY = 2,
    REFUSED_CWD = 3,
    REFUSED_SESSION = 4,
    REFUSED_SHELL = 5,
    REFUSED_USER = 6,
    REFUSED_IDS = 7,
    REFUSED_CONNECT = 8,
    REFUSED_LISTEN = 9,
};

/* Do what a well-formed frame of the host asks. */
void dispatch_frame(const struct frame *frame);
/* Answer a RUN with REFUSED. `text` may be NULL: then the errno speaks for itself. */
void refuse(uint32_t id, int error, enum refusal reason, const char *text);
void refuse_cwd(uint32_t id, int error, const char *cwd);

#endif
