/* Bytes as a user that is asked for, a passwd file and a group file, with a NUL byte between each two. */
#include <stdlib.h>
#include <string.h>

#include "../guest/account.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_account(const struct account *account) {
    if (account->uid > ACCOUNT_ID_MAX || account->gid > ACCOUNT_ID_MAX) abort();
    if (account->group_count < 1 || account->group_count > ACCOUNT_GROUPS_MAX) abort();
    if (account->groups[0] != account->gid) abort();
    for (size_t i = 0; i < account->group_count; i++) {
        if (account->groups[i] > ACCOUNT_ID_MAX) abort();
    }
    if (!account->listed) return;
    if (strnlen(account->name, sizeof account->name) == sizeof account->name || *account->name == '\0') abort();
    if (strnlen(account->home, sizeof account->home) == sizeof account->home || *account->home == '\0') abort();
    if (strnlen(account->shell, sizeof account->shell) == sizeof account->shell || *account->shell == '\0') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct account account;
    char *bytes = malloc(size + 1);
    if (bytes == NULL) return 0;
    memcpy(bytes, data, size);
    bytes[size] = '\0';
    size_t wanted_bytes = strnlen(bytes, size);
    struct text passwd = {NULL, 0}, group = {NULL, 0};
    if (wanted_bytes < size) {
        passwd.start = bytes + wanted_bytes + 1;
        passwd.length = size - wanted_bytes - 1;
        const char *end = memchr(passwd.start, '\0', passwd.length);
        if (end != NULL) {
            group.start = end + 1;
            group.length = passwd.length - (size_t)(group.start - passwd.start);
            passwd.length = (size_t)(end - passwd.start);
        }
    }
    memset(&account, 0xff, sizeof account);
    if (account_find(&account, bytes, passwd, group) == ACCOUNT_FOUND) check_account(&account);
    free(bytes);
    return 0;
}
