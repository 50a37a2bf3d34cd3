/* Starts one process, at the cost of a bare vfork and exec. */
#ifndef DUTYFREE_SPAWN_H
#define DUTYFREE_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

enum { LAUNCH_EXTRAS = 2 };

struct account;

/* What a child could not do before its program ran. */
struct failure {
    int identity_error; /* become its user */
    int cwd_error;      /* as that user, enter its working directory */
    bool stalled;       /* either, in time */
};

struct launch {
    char *const *argv;
    char *const *envp;
    const char *path;   /* the file to run, or NULL: argv[0] is looked up in `search` */
    const char *search; /* a PATH, or NULL for the usual places */
    int stdio[3];       /* -1: inherit the guest's own, /dev/null */
    bool terminal;      /* stdio is a terminal and becomes the controlling one */
    struct {
        int from; /* above every `to`; -1: unused */
        int to;
    } extra[LAUNCH_EXTRAS];
    int (*applet)(char *const *argv); /* runs in the child instead of a program */
    const struct account *account;    /* the user that the child becomes, or NULL: it stays the guest's */
    const char *cwd;                  /* entered by that user; NULL: its home */
    struct failure *failure;          /* with an account: why no child was left */
};

/* Called once at start-up: finds out what children must undo. */
void spawn_prepare(void);
/* Whether processes can leave their process tree; under our seccomp filter they cannot. */
bool spawn_may_stray(void);
/* Starts the child in the guest's present working directory. -1 with errno when no process could be made. If a
 * program cannot be executed, the child writes the reason to stderr and exits with code 126 or 127. With an account,
 * -1 and a failure that is set mean that there is no child, because it could not begin as that user. */
pid_t spawn(const struct launch *launch);
/* Write to `fd` why NAME cannot run. */
void spawn_complain(int fd, const char *name, int error);

#endif
