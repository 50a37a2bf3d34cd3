/* Which privileges the sandbox's processes have, and whether they can gain more. */
#include "probe.h"

#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void status_field(char **arguments)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[512];
    size_t length = strlen(arguments[0]);
    if (!status)
        denied(errno);
    while (fgets(line, sizeof line, status))
        if (strncmp(line, arguments[0], length) == 0 && line[length] == ':') {
            char *text = line + length + 1 + strspn(line + length + 1, " \t");
            text[strcspn(text, "\n")] = '\0';
            value(text);
        }
    denied(ENOENT);
}

static void effective_uid(char **arguments)
{
    (void)arguments;
    char text[16];
    snprintf(text, sizeof text, "%u", geteuid());
    value(text);
}

static int become(uid_t uid)
{
    if (setgroups(0, NULL) < 0 && errno != EPERM)
        return -1;
    return setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0 ? -1 : 0;
}

static void copy_program(const char *target)
{
    char block[65536];
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to = open(target, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (from < 0 || to < 0)
        broken("cannot copy the program");
    for (ssize_t got; (got = read(from, block, sizeof block)) > 0;)
        if (write(to, block, (size_t)got) != got)
            broken("cannot copy the program");
    close(to);
}

/* Runs a set-user-id copy of this program as another user; the copy answers its effective user id. */
static void run_setuid_copy(char **arguments)
{
    copy_program(arguments[0]);
    if (chmod(arguments[0], 04755) < 0)
        denied(errno);
    if (become((uid_t)number(arguments[1])) < 0)
        broken("cannot become the other user");
    execl(arguments[0], "probe", "effective-uid", NULL);
    denied(errno);
}

static void become_user(char **arguments)
{
    if (become((uid_t)number(arguments[0])) < 0)
        denied(errno);
    int file = open(arguments[1], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat made;
    if (file < 0 || fstat(file, &made) < 0)
        denied(errno);
    char text[16];
    snprintf(text, sizeof text, "%u", made.st_uid);
    value(text);
}

static void realtime(char **arguments)
{
    (void)arguments;
    struct sched_param priority = {.sched_priority = 1};
    judge(sched_setscheduler(0, SCHED_FIFO, &priority));
}

static void raise_priority(char **arguments)
{
    (void)arguments;
    judge(setpriority(PRIO_PROCESS, 0, -10));
}

static void own_files(char **arguments)
{
    struct stat seen;
    if (chmod(arguments[0], 0604) < 0 || chown(arguments[0], geteuid(), getegid()) < 0 || stat(arguments[0], &seen) < 0)
        denied(errno);
    if ((seen.st_mode & 0777) != 0604)
        broken("the mode did not stick");
    if (arguments[1][0] != '-' && chown(arguments[0], (uid_t)number(arguments[1]), (gid_t)number(arguments[1])) < 0)
        denied(errno);
    allowed(NULL);
}

const struct probe privilege_probes[] = {
    {"status-field", 1, status_field},
    {"effective-uid", 0, effective_uid},
    {"run-setuid-copy", 2, run_setuid_copy},
    {"become-user", 2, become_user},
    {"realtime", 0, realtime},
    {"raise-priority", 0, raise_priority},
    {"own-files", 2, own_files},
    {NULL, 0, NULL},
};
