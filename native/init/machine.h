/* The steps from a machine that has just started to a sandbox's root. All of them: false with errno. */
#ifndef DUTYFREE_MACHINE_H
#define DUTYFREE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

#include "order.h"

bool machine_mount_kernel_files(void);
/* Load /modules/00.ko, 01.ko and so on, which are in the order of their dependencies. */
bool machine_load_modules(void);
/* The device of the port of this name; false if it is not there (yet). */
bool machine_find_port(const char *name, char *path, size_t size);
/* The steps that do not depend on the order; saved machines have done them. */
bool machine_prepare(void);
/* Put this process, and so all that it will start, under the order's bounds. */
bool machine_set_bounds(const struct order *order);
/* The image, with a writable space over it, in /root. */
bool machine_make_root(const struct order *order);
bool machine_enter_root(void);

#endif
