#include "dialect.h"

#include <string.h>

/* The shell reads these drivers from its stdin. Each line's text is in a file that the shell has open and that becomes
 * stdin of `.`, so that no descriptor and no name is left for the line itself to see: the redirections close the
 * private descriptors for as long as it runs (shells keep the saved copies close-on-exec), and the prefix replaces
 * stdin, which is also how the guest sees that the line has begun and can be interrupted.
 *
 * An interrupt must abandon the line wherever it is, and never the shell. The trap that does it is set anew for each
 * line, so that a line's own INT trap holds for that line only:
 * - bash runs the INT trap between two commands. The trap cannot abandon its caller, but with extdebug a DEBUG trap
 *   that returns 2 makes the function or sourced file that it interrupts return, level by level, until the driver is
 *   reached, where there is no BASH_SOURCE and the trap removes itself.
 * - POSIX shells abandon a special builtin that fails up to the nearest `command`. In the driver itself, where the
 *   status descriptor can be written to, the trap does nothing. */

#define BASH_ABORT                                                                    \
    "'shopt -s extdebug;trap \"if [ \\${#BASH_SOURCE[@]} = 0 ];then trap - DEBUG;"    \
    "shopt -u extdebug;else [ x -eq 1 ] 2>/dev/null;fi\" DEBUG'"
#define BASH_TRAP "trap \"$__dt\" INT"
/* Bash reads its driver byte by byte, a system call each: what is said for every line is kept in variables. */
#define BASH_REPORT "eval \"$__dr\"\n"

#define POSIX_TRAP "trap 'true 2>/dev/null >&7||export 1= 2>/dev/null' INT"
#define POSIX_REPORT "command echo \"$?\">&7\n"

static const struct dialect bash = {
    .status_fd = 98,
    .text_fd = 99,
    .argv = {"bash", "--noprofile", "--norc"},
    .init = {"readonly __dt=" BASH_ABORT " __dl='. ", "<&99 99<&- 98>&-' __dr='builtin echo \"$?\">&98'\n" BASH_TRAP "\n" BASH_REPORT},
    .line = {"eval \"$__dl\"\n" BASH_REPORT},
    /* A line of its own, because bash shows the line that has a syntax error. */
    .prefix = BASH_TRAP ";exec </dev/null\n",
};

static const struct dialect posix = {
    .status_fd = 7,
    .text_fd = 8,
    .argv = {"sh"},
    .init = {POSIX_TRAP "\n" POSIX_REPORT},
    .line = {"command . ", "<&8 8<&- 7>&-\n" POSIX_REPORT},
    .prefix = POSIX_TRAP ";exec </dev/null;",
};

const struct dialect *dialect_of(const char *shell_path) {
    const char *slash = strrchr(shell_path, '/');
    const char *name = slash == NULL ? shell_path : slash + 1;
    return strcmp(name, "bash") == 0 ? &bash : &posix;
}
