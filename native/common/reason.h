/* An errno in words. */
#ifndef DUTYFREE_REASON_H
#define DUTYFREE_REASON_H

#include <string.h>

/* Never NULL, and safe in a child that shares the guest's memory: nothing is allocated and nothing is translated. */
static inline const char *reason_of(int error) {
#ifdef __GLIBC__
    const char *reason = strerrordesc_np(error);
    return reason != NULL ? reason : "unknown error";
#else
    return strerror(error);
#endif
}

#endif
