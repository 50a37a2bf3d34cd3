/* Applets: file operations that need no file of the sandbox. They run in a child of the guest. */
#ifndef DUTYFREE_APPLETS_H
#define DUTYFREE_APPLETS_H

/* argv is the applet's name and arguments. Returns the exit code: 0, or the errno of what failed. */
int applet_run(char *const *argv);
/* The name, to be freed, of the file that the applet may leave behind if it is killed; NULL if it leaves none. Chosen
 * before the applet's process is made, which then uses it. */
char *applet_leftover(char *const *argv);

/* Each one gets its arguments, without the name and as many as it wants, and returns the exit code. */
int applet_read(char *const *arguments);
int applet_write(char *const *arguments);
int applet_append(char *const *arguments);
int applet_list(char *const *arguments);
int applet_stat(char *const *arguments);
int applet_mkdir(char *const *arguments);
int applet_move(char *const *arguments);
int applet_remove(char *const *arguments);
int applet_pack(char *const *arguments);
int applet_unpack(char *const *arguments);
int applet_ports(char *const *arguments);
int applet_watch(char *const *arguments);

#endif
