#include "user.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../common/reason.h"
#include "dispatch.h"

enum { FILE_MAX_BYTES = 1024 * 1024, IDENTITY_NAMES = 4 };

/* The request's environment with the entries that it gains. */
struct identity {
    struct account account; /* first, so that freeing it frees all */
    char entries[IDENTITY_NAMES][PATH_MAX + 16];
    char *envp[];
};

/* Anything can be at this path: nothing here may block, and only a file is read. A file that is not there is empty.
 * False with errno; the text is to be freed. */
static bool read_file(const char *path, struct text *text) {
    *text = (struct text){NULL, 0};
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR;
    struct stat info;
    char *bytes = NULL;
    int error = 0;
    size_t used = 0;
    if (fstat(fd, &info) != 0) error = errno;
    else if (!S_ISREG(info.st_mode)) error = EINVAL;
    else if (info.st_size > FILE_MAX_BYTES) error = EFBIG;
    else if ((bytes = malloc((size_t)info.st_size + 1)) == NULL) error = ENOMEM;
    while (error == 0 && used < (size_t)info.st_size) { /* what is added meanwhile is not read */
        ssize_t got = read(fd, bytes + used, (size_t)info.st_size - used);
        if (got < 0) error = errno;
        if (got <= 0) break;
        used += (size_t)got;
    }
    close(fd);
    if (error != 0) {
        free(bytes);
        errno = error;
        return false;
    }
    *text = (struct text){bytes, used};
    return true;
}

static void refuse_file(uint32_t id, const char *path, int error) {
    char text[96];
    snprintf(text, sizeof text, "%s cannot be read: %s", path, reason_of(error));
    refuse(id, error, REFUSED_USER, text);
}

static bool look_up(uint32_t id, struct account *account, const char *wanted) {
    static const char *const reasons[] = {
        [ACCOUNT_MALFORMED] = "not a name or a uid, with or without a group",
        [ACCOUNT_NO_USER] = "no such user",
        [ACCOUNT_NO_GROUP] = "no such group",
        [ACCOUNT_MANY_GROUPS] = "a user of too many groups",
    };
    struct text passwd, group;
    if (!read_file("/etc/passwd", &passwd)) {
        refuse_file(id, "/etc/passwd", errno);
        return false;
    }
    if (!read_file("/etc/group", &group)) {
        refuse_file(id, "/etc/group", errno);
        free((char *)passwd.start);
        return false;
    }
    enum account_outcome outcome = account_find(account, wanted, passwd, group);
    free((char *)passwd.start);
    free((char *)group.start);
    if (outcome == ACCOUNT_FOUND) return true;
    bool malformed = outcome == ACCOUNT_MALFORMED;
    refuse(id, malformed ? EINVAL : ENOENT, malformed ? REFUSED_REQUEST : REFUSED_USER, reasons[outcome]);
    return false;
}

static void extend_environment(struct identity *identity, struct request *request, size_t count) {
    const struct account *account = &identity->account;
    const char *name = account->listed ? account->name : NULL;
    const struct {
        const char *name;
        const char *value; /* NULL: passwd does not say */
    } gains[IDENTITY_NAMES] = {{"HOME", account->listed ? account->home : "/"},
                               {"USER", name},
                               {"LOGNAME", name},
                               {"SHELL", account->listed ? account->shell : "/bin/sh"}};
    memcpy(identity->envp, request->envp, count * sizeof *identity->envp);
    for (int i = 0; i < IDENTITY_NAMES; i++) {
        if (gains[i].value == NULL || request_env(request, gains[i].name) != NULL) continue;
        snprintf(identity->entries[i], sizeof identity->entries[i], "%s=%s", gains[i].name, gains[i].value);
        identity->envp[count++] = identity->entries[i];
    }
    identity->envp[count] = NULL;
    request->envp = identity->envp;
}

struct account *user_of(uint32_t id, struct request *request) {
    size_t count = 0;
    while (request->envp[count] != NULL) count++;
    struct identity *identity = malloc(sizeof *identity + (count + IDENTITY_NAMES + 1) * sizeof *identity->envp);
    if (identity == NULL) {
        refuse(id, ENOMEM, REFUSED_CAPACITY, NULL);
        return NULL;
    }
    if (!look_up(id, &identity->account, request->user)) {
        free(identity);
        return NULL;
    }
    extend_environment(identity, request, count);
    return &identity->account;
}

void user_free(struct account *account) {
    free(account);
}

/* Changing to an ordinary user clears these, unless the guest was started with unusual settings. */
static int drop_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); /* EINVAL where there are none */
    return syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

int user_become(const struct account *account) {
    bool stays = account->uid == geteuid() && account->gid == getegid();
    /* System calls as they are: a library's wrappers would change all threads, and they lock. */
    if (syscall(SYS_setgroups, account->group_count, account->groups) != 0) {
        /* With one id only, the kernel forbids changing the list of groups; the guest's own user needs no change. */
        return stays ? 0 : errno;
    }
    if (syscall(SYS_setresgid, account->gid, account->gid, account->gid) != 0) return errno;
    if (syscall(SYS_setresuid, account->uid, account->uid, account->uid) != 0) return errno;
    int error = account->uid == 0 ? 0 : drop_capabilities();
    prctl(PR_SET_DUMPABLE, 0); /* fs.suid_dumpable says what changing ids has made of it */
    return error;
}

bool user_stat(uint32_t uid, uint32_t gid, const char *path, struct stat *info) {
    syscall(SYS_setfsgid, gid);
    syscall(SYS_setfsuid, uid);
    bool found = stat(path, info) == 0;
    syscall(SYS_setfsuid, geteuid());
    syscall(SYS_setfsgid, getegid());
    prctl(PR_SET_DUMPABLE, 0); /* as above */
    return found;
}

void user_refuse(uint32_t id, const struct account *account, int error) {
    char text[128];
    snprintf(text, sizeof text, "cannot become user %u of group %u: %s", account->uid, account->gid, reason_of(error));
    refuse(id, error, REFUSED_IDS, text);
}
