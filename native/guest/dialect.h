/* The text that drives a shell: it runs single lines, reports their exit codes and makes them interruptible, and stays
 * invisible to the lines. */
#ifndef DUTYFREE_DIALECT_H
#define DUTYFREE_DIALECT_H

struct dialect {
    int status_fd; /* in the shell: where exit codes are written */
    int text_fd;   /* in the shell: a file with the line's text */
    const char *argv[4];
    const char *init[2]; /* read once; answers with a status. Where there are two parts, the path of stdin is between */
    const char *line[2]; /* read for each line; so is it here */
    const char *prefix; /* stands before the line's text in the file */
};

/* A session's exit code for a line that was interrupted, before it is translated to 130. */
enum { DIALECT_ABORTED = 2 };

const struct dialect *dialect_of(const char *shell_path);

#endif
