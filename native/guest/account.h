/* Users and groups, as the sandbox's own passwd and group files name them. The files are hostile input: parsing has no
 * effects and allocates nothing, so that it can be fuzzed alone. */
#ifndef DUTYFREE_ACCOUNT_H
#define DUTYFREE_ACCOUNT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ACCOUNT_NAME_BYTES = 256, ACCOUNT_GROUPS_MAX = 1024 };

#define ACCOUNT_ID_MAX (UINT32_MAX - 1) /* the last number means "leave as it is" to the kernel */

struct text {
    const char *start;
    size_t length;
};

struct account {
    uint32_t uid;
    uint32_t gid;
    size_t group_count; /* of the supplementary groups, the first of which is `gid` */
    uint32_t groups[ACCOUNT_GROUPS_MAX];
    bool listed; /* passwd has an entry: the texts below are set, none of them empty */
    char name[ACCOUNT_NAME_BYTES];
    char home[PATH_MAX];
    char shell[PATH_MAX];
};

enum account_outcome {
    ACCOUNT_FOUND,
    ACCOUNT_MALFORMED,
    ACCOUNT_NO_USER,
    ACCOUNT_NO_GROUP,
    ACCOUNT_MANY_GROUPS,
};

/* `wanted` is a name or a uid, and optionally ":" and a name or a gid of a group, which is then the only one. Digits are
 * always a number. A uid that passwd does not list is an account without a name, in the group of the same number. */
enum account_outcome account_find(struct account *account, const char *wanted, struct text passwd, struct text group);

#endif
