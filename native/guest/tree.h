/* Process trees, as /proc shows them. Without /proc a process group has to do. */
#ifndef DUTYFREE_TREE_H
#define DUTYFREE_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A moment in time: tree.c can decide whether a process was started before or after it. */
struct moment {
    uint64_t tick;
    pid_t last_pid;
};

struct moment moment_now(void);

/* Which of the guest's orphans count as part of a tree. The first process of an action is the reaper of all that it
 * starts, but a program can undo that, or be created as its parent's sibling; then the guest becomes its parent. */
enum strays {
    STRAYS_NONE,
    STRAYS_OF_SESSION, /* those that are in the session of the tree's first process */
    STRAYS_ALL,        /* all that were started after it: no other action can have started them */
};

/* Freeze and then kill a process and everything below it. */
void tree_kill(pid_t root, enum strays strays);
/* The same for what is below it and was started after `since`, but not for the process itself. */
void tree_kill_since(pid_t root, struct moment since, enum strays strays);
/* Everything below the calling process, to be called before it exits. */
void tree_kill_own(void);
/* One signal to a process and everything below it, without freezing. */
void tree_signal(pid_t root, int number);

#endif
