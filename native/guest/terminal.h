#ifndef DUTYFREE_TERMINAL_H
#define DUTYFREE_TERMINAL_H

#include <stdint.h>

/* A new pseudo-terminal: the master, which does not block; -1 with errno. The command's end goes to `*slave`. */
int terminal_open(uint16_t rows, uint16_t cols, int *slave);
void terminal_resize(int master, uint16_t rows, uint16_t cols);

#endif
