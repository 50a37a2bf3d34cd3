#include "descriptors.h"

#include <limits.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FALLBACK_LIMIT = 65536, ENOUGH = 16384 };

static struct rlimit original;
static bool raised;

void close_between(int first, int last) {
    if (first > last) return;
    if (syscall(SYS_close_range, first, last, 0) == 0) return;
    struct rlimit limit;
    int end = FALLBACK_LIMIT;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FALLBACK_LIMIT) end = (int)limit.rlim_cur;
    for (int fd = first; fd <= last && fd < end; fd++) close(fd);
}

void close_from(int first) {
    close_between(first, INT_MAX);
}

void descriptors_raise_limit(void) {
    if (raised || getrlimit(RLIMIT_NOFILE, &original) != 0 || original.rlim_cur >= ENOUGH) return;
    struct rlimit wanted = {.rlim_cur = original.rlim_max < ENOUGH ? original.rlim_max : ENOUGH,
                            .rlim_max = original.rlim_max};
    raised = setrlimit(RLIMIT_NOFILE, &wanted) == 0;
}

void descriptors_restore_limit(void) {
    if (raised) setrlimit(RLIMIT_NOFILE, &original);
}
