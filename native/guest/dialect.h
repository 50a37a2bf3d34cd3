/* How a shell is driven: what it reads so that lines can be run, told apart and interrupted, and nothing else shows. */
#ifndef DUTYFREE_DIALECT_H
#define DUTYFREE_DIALECT_H

struct dialect {
    int status_fd; /* in the shell: where exit codes are written */
    int text_fd;   /* in the shell: a file with the line's text */
    const char *argv[4];
    const char *init;   /* read once; answers with a status */
    const char *source; /* then, for each line: this, the path of stdin, and `report` */
    const char *report;
    const char *prefix; /* stands before the line's text in the file */
};

/* A session's exit code for a line that was interrupted, before it is translated to 130. */
enum { DIALECT_ABORTED = 2 };

const struct dialect *dialect_of(const char *shell_path);

#endif
