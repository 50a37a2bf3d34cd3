/* The cell spawner: a small fork server that builds sandboxes from lists of operations.
 *
 * The host process plans, the spawner obeys: every request is a list of operations ("make this cgroup", "mount that
 * here"), each of which is one or two system calls. It holds no policy. It is small and single-threaded so that clone is
 * fast, and it outlives the host process just long enough to clean up after it. */
#ifndef DUTYFREE_SPAWNER_H
#define DUTYFREE_SPAWNER_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "../common/fields.h"

enum {
    MAX_MESSAGE = 128 * 1024, /* one request, as the host may send it */
    MAX_CELLS = 65536,
    MAX_CGROUPS = 8, /* per cell; cgroup v1 needs one for each controller */
    MAX_SCRATCH = 2, /* per cell and for the spawner itself */
    MAX_COPY = 8 * 1024 * 1024,
    MAX_TREES = 32,    /* of the host, shown in one cell */
    MAX_TARGET = 2048, /* a path in a cell, with its NUL */
    IMAGE_FD = 63,   /* named in plans as /proc/self/fd/63 */
    IDS_FD = 62,     /* in a cell, the namespace that says how mounts translate ids */
};

#define FROZEN "/frozen"
#define NEW "/new" /* where a cell's root is put together */
#define IGNORED_SIGNALS {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE} /* by the spawner, which stops only when the host ends */

/* Messages: a kind in the first byte, then fields. */
enum request { REQUEST_PREPARE = 1, REQUEST_SPAWN = 2, REQUEST_KILL = 3, REQUEST_FREEZE = 4, REQUEST_DROP = 5,
               REQUEST_HOLD = 6, REQUEST_END = 7 }; /* end: kill, without a reply when it died, only when it exited */
enum reply { REPLY_PREPARED = 65, REPLY_SPAWNED = 66, REPLY_FAILED = 67, REPLY_EXITED = 68, REPLY_FROZEN = 69,
             REPLY_DIED = 70 }; /* its processes are dead, and only then, once all that it held is given back: exited */
enum reply_tag { TAG_CELL = 1, TAG_PID = 2, TAG_ERRNO = 3, TAG_STEP = 4, TAG_STATUS = 5 };

/* Operations: the tag of a field whose bytes are the arguments, each ended by a NUL. */
enum operation {
    /* in the spawner, before the cell exists */
    OP_CELL = 1,    /* number: the cell's own, chosen by the host */
    OP_CGROUP = 2,  /* directory: made now, removed with the cell */
    OP_SET = 3,     /* file, text */
    OP_JOIN = 4,    /* file: cgroup v1 `tasks`, which the cell writes itself into */
    OP_INTO = 5,    /* directory: cgroup v2, into which the cell is cloned */
    OP_SCRATCH = 6, /* directory: made now if it is not there, removed with the cell, content included */
    OP_UNSHARE = 7, /* clone flags: the cell's namespaces */
    OP_IMAGE = 8,   /* template, path: a disk, open in the cell as descriptor IMAGE_FD until it has been mounted */
    OP_NETWORK = 9, /* a network of its own, with nothing but a loopback interface; without this, the host's */
    OP_FROZEN = 10, /* number of the frozen space that is to be made or dropped */
    /* in the cell (or, while preparing, in the spawner itself), in the order given */
    OP_MKDIR = 32,     /* path, octal mode, owner (here and below: a number, or "cell" for what the cell's root is) */
    OP_SYMLINK = 33,   /* target, path */
    OP_WRITE = 34,     /* path, octal mode, owner, text */
    OP_MKNOD = 35,     /* path, octal mode with type, owner, major, minor */
    OP_XATTR = 36,     /* path, name, text */
    OP_MOUNT = 37,     /* source, target, type, flags, options; an empty string stands for none. Below NEW, no link of an
                          image is followed on the way to the target */
    OP_ROOT = 38,      /* directory: becomes /, everything else is let go */
    OP_HOSTNAME = 39,  /* name */
    OP_CGROUP_NS = 40, /* hides the cgroups above the cell's own */
    OP_READ_ONLY = 41, /* directory: read-only, with everything that is mounted below it */
    OP_KEEP = 42,      /* directory: what is mounted there can be frozen later; only in a cell */
    OP_ENSURE = 43,    /* path, octal mode, owner, text, 0 or 1: a file where there is none (with 1, also in place of
                          what is there); where there cannot be one, nothing */
    OP_COPY = 44,      /* source, target, octal mode, owner: a copy of a file that everyone may read; where there is no
                          such file, nothing */
    OP_UNMOUNT = 45,   /* path */
    OP_SHOW = 46,      /* source, target: the tree at source is seen at target, too, unless an image took the target away */
    OP_IDMAP = 47,     /* path: what is mounted there is seen with the cell's own ids from here on; only in a cell */
    OP_TAKE = 50,      /* source, target, 0 or 1, 0 or 1: a part of the host, with all that is mounted below it if 1, a
                          directory if 1; no link is followed on the way there, and the target is made to fit */
    OP_PART = 49,      /* target, options, others: an overlay over a directory of the host; with the other options if the
                          host has removed that since */
    OP_SOURCE = 51,    /* number, source, identity, 0 or 1, target, options: a directory (if 1) or file of the host is
                          seen, read-only, at that path of the cell, which is made if it is not there; in the file's
                          case as it is, in the directory's by an overlay with these options. The source is a path
                          whose device and inode are `identity`, or, if it is empty, the tree of that number which
                          came with the request */
    OP_OVERLAY = 52,   /* target, options: an overlay at that path of the cell, found or made as OP_SOURCE does */
    OP_TRY_IDMAP = 48, /* path, outside id, count, stored id: fails where that is not possible; only in the spawner */
    /* in the cell, last */
    OP_USER = 64, /* outside id, count, account, stored id: a user namespace in which 0 .. count-1 stand for outside ..,
                     made by the id `account` (0: the spawner's own); files on disk belong to stored .. */
    OP_CAPS = 65, /* mask of the capabilities that are kept */
    OP_EXEC = 66, /* argv of the guest, which inherits nothing but the stream as descriptor 3 */
};

struct step { /* where something went wrong */
    int error;
    uint8_t operation;
    char detail[96];
};

struct arguments { /* of one operation */
    const char *text[6];
    int count;
};

/* plan.c: reading and doing operations. Both return false with `step` filled in. */
bool arguments_of(const struct field *field, int count, struct arguments *arguments, struct step *step);
bool operation_do(const struct field *field, struct step *step);
bool step_failed(struct step *step, uint8_t operation, int error, const char *detail);
uint64_t number_of(const char *text);
bool write_file(const char *path, const char *text);
void close_all_but(int *kept, size_t count); /* from 3 up; sorts the list */
int64_t now_ms(void);

/* shown.c: what of the host a cell is shown. `trees`: descriptors that came with the request which is carried out. */
void trees_note(const int *given, int count);
int trees_given(const int **given);
bool show_source(const struct arguments *a, uid_t owner);  /* false with errno */
bool show_overlay(const struct arguments *a, uid_t owner); /* false with errno */

/* ids.c: how the ids of files and those of a cell come together. */
struct ids {
    uint64_t outside, count, stored;
};
bool ids_differ(const struct ids *ids);
int ids_namespace(const struct ids *ids);              /* not to be closed; -1 with errno */
int ids_translate(const char *path, int namespace);    /* what is mounted there, translated, attached nowhere; -1 */
void operations_belong_to(uint64_t root, bool differ); /* plan.c: sets the cell for the operations that follow */

/* network.c: fresh network namespaces; `networks_take` gives one away, or -1 with errno. */
struct networks {
    int orders; /* one byte asks for one namespace */
    pid_t maker;
};
bool networks_start(struct networks *networks);
int networks_take(const struct networks *networks);
void networks_stop(const struct networks *networks);
bool raise_loopback(void);

/* survey.c: lists what of the host a cell's root may edit. */
_Noreturn void survey(void);

/* trial.c: tries each step of a cell by itself, for `dutyfree doctor`. */
int try_steps(const char *mode);

/* seccomp.c: the filters, built once; `filters_install` returns false with errno set. */
struct filters {
    struct sock_fprog usual;
    struct sock_fprog without_netlink; /* where another filter has a listener already, and the kernel allows no second */
};
bool filters_build(struct filters *filters);
bool filters_install(const struct filters *filters, int listeners);

/* netlink.c: the process that makes netlink sockets for cells. A cell hands the listener of its filter over to it. */
struct netlinks {
    int listeners;
    pid_t keeper;
};
bool netlinks_start(struct netlinks *netlinks);
void netlinks_hand_over(int listeners, int listener);
void netlinks_stop(const struct netlinks *netlinks);

/* inheritance.c: noted once in the spawner, left behind in each cell. */
void inheritance_note(void);
void inheritance_leave(void);

/* cell.c: the life of a cell. */
struct spawner {
    int control;  /* the host, a seqpacket socket */
    int epoll;
    int guest;    /* the guest's binary, a sealed memory file */
    struct filters filters;
    struct networks networks;
    struct netlinks netlinks;
    struct rlimit files; /* how many descriptors a cell's processes may have; ours are more */
};
void cell_spawn(struct spawner *spawner, const uint8_t *fields, size_t length, int stream);
void cell_kill(uint64_t number, bool ending);
/* Shows the cell's writable space at FROZEN/frozen, to be read, and to be a layer of others once the cell is dead. It
 * inherits the cell's scratch directory, however that dies. */
void cell_freeze(struct spawner *spawner, uint64_t number, uint64_t frozen);
void cell_drop(uint64_t frozen);
/* Makes a cgroup (OP_CGROUP) that is removed with the cell, and thawed when the cell is killed: with cgroup v1 a frozen
 * process does not die. `answer` is the number in the reply. */
void cell_hold(struct spawner *spawner, uint64_t number, uint64_t answer, const struct field *group);
void cells_kill(void);
bool cells_remain(void);
void cell_status_ready(struct spawner *spawner, uint32_t slot);
/* Reaps every cell whose process has ended. Returns true if a directory was busy and must be tried again. */
bool cells_reap(struct spawner *spawner);

/* lockdown.c: giving up every privilege; returns only on failure. */
struct lockdown {
    const struct field *user, *caps, *exec;
    int status; /* to ask the spawner for id maps */
    int kept;   /* goes to the spawner with that; -1 for none */
    int guest;
    int stream;
    const struct filters *filters;
    int listeners;
    const struct rlimit *files;
};
void lockdown_and_exec(const struct lockdown *lockdown, struct step *step);
bool map_ids(pid_t pid, uint64_t outside, uint64_t count);

/* image.c: a block device with an empty file system of limited size; -1 with errno set. */
int image_open(const char *template, const char *path);

/* reply.c */
void reply(struct spawner *spawner, enum reply kind, const struct field_writer *fields);
void reply_failed(struct spawner *spawner, uint64_t cell, const struct step *step);
void reply_number(struct spawner *spawner, enum reply kind, uint64_t cell, uint8_t tag, uint64_t number);

#endif
