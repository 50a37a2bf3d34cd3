/* The probe program: `probe NAME ARGUMENT...` tries one operation and prints one line,
 *
 *   allowed [DETAIL]   the operation succeeded (exit code 0)
 *   denied ERRNO       the kernel refused, decimal errno (1)
 *   value TEXT         an answer that the host evaluates (0)
 *   broken TEXT        the operation could not be tried (2)
 *
 * Where the kernel checks permission first, the arguments are invalid on purpose, so an allowed call does no harm. */
#ifndef DUTYFREE_PROBE_H
#define DUTYFREE_PROBE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct probe {
    const char *name;
    int arguments;
    void (*try)(char **arguments);
};

extern const struct probe kernel_probes[];
extern const struct probe mount_probes[];
extern const struct probe file_probes[];
extern const struct probe process_probes[];
extern const struct probe privilege_probes[];
extern const struct probe network_probes[];
extern const struct probe exhaustion_probes[];
extern const struct probe buffer_probes[];
extern const struct probe ordinary_probes[];
extern const struct probe user_probes[];

_Noreturn void allowed(const char *detail);
_Noreturn void denied(int error);
_Noreturn void value(const char *text);
_Noreturn void broken(const char *text);

/* A result below zero is a denial, with errno. */
_Noreturn void judge(long result);

/* For calls whose arguments are wrong on purpose: any error but a refusal means that permission was given. */
_Noreturn void judge_permission(long result);

/* Runs `body` in a child; its exit code, or 255 when a signal ended it. */
int in_child(int (*body)(void *), void *argument);

/* Leaves a process behind that keeps holding what `take` took; answers the amount. */
_Noreturn void hold(long (*take)(long most), long most);

pid_t number(const char *text);
void join(char *into, size_t size, const char *directory, const char *name);

#endif
