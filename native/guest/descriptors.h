#ifndef DUTYFREE_DESCRIPTORS_H
#define DUTYFREE_DESCRIPTORS_H

#include <stdbool.h>

/* Close every descriptor from `first` on. */
void close_from(int first);
/* Close every descriptor from `first` to `last`. */
void close_between(int first, int last);

/* Let the guest have as many descriptors as its largest number of actions needs, if it may. */
void descriptors_raise_limit(void);
/* In a child: put back the limit that the guest was started with. */
void descriptors_restore_limit(void);

#endif
