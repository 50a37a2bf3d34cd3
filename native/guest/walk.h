/* Walks paths without following symlinks out of the tree. */
#ifndef DUTYFREE_WALK_H
#define DUTYFREE_WALK_H

#include <stdbool.h>
#include <sys/types.h>

/* mkdir -p of everything above `path`; false with errno. */
bool make_parents(const char *path);

/* The directory that holds the last part of a relative `name` below `root`, opened without following any symlink;
 * missing ones are made when `make` is set. The last part itself goes to `*last` (it points into `name`, which is
 * changed). -1 with errno: EPERM for a name that is absolute, has a `..`, or passes through a symlink; EINVAL for one
 * that names `root` itself. */
int walk_to_parent(int root, char *name, bool make, const char **last);

#endif
