/* The payloads of RUN, checked and laid out for exec, and of OUTPUT_CREDIT, SIGNAL and RESIZE. Parsing has no effects,
 * so that it can be fuzzed alone. */
#ifndef DUTYFREE_REQUEST_H
#define DUTYFREE_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "../common/frame.h"

enum run_mode { MODE_ARGV = 0, MODE_SHELL = 1, MODE_APPLET = 2, MODE_SESSION = 3, MODE_LINE = 4,
                MODE_DIAL = 5, MODE_LISTEN = 6, MODE_ACCEPT = 7, MODE_DATAGRAMS = 8 };
enum run_flag { RUN_PTY = 1, RUN_STDIN = 2, RUN_MERGE = 4 };

struct request {
    uint64_t mode;
    uint64_t flags;
    uint64_t timeout_ms;
    uint64_t output_limit;
    uint64_t credit;
    uint64_t rows;
    uint64_t cols;
    uint64_t session;
    size_t argc;
    char **argv;     /* ends with NULL, as does envp */
    char **envp;
    const char *cwd; /* NULL when the request names none */
    const char *user; /* the same */
    const struct account *account; /* of the user; set before the request is carried out */
    void *memory;
};

enum request_outcome { REQUEST_GOOD, REQUEST_BAD, REQUEST_BROKEN, REQUEST_NO_MEMORY };

/* GOOD: free it with request_free. BAD: well-formed but invalid, `*reason` says why. BROKEN: not a list of fields.
 * NO_MEMORY: malloc failed. */
enum request_outcome request_parse(struct request *request, const uint8_t *payload, size_t length,
                                   const char **reason);
void request_free(struct request *request);

/* The value of NAME in the request's environment, or NULL. */
const char *request_env(const struct request *request, const char *name);

#define CREDIT_MAX_BYTES ((uint64_t)INT64_MAX) /* of one action; the host gives far less */

/* The numbers with tags 1 and 2 of an OUTPUT_CREDIT, SIGNAL or RESIZE; what is wrong with them, or NULL. */
const char *numbers_parse(const struct frame *frame, uint64_t *first, uint64_t *second);

#endif
