#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

void terminal_resize(int master, uint16_t rows, uint16_t cols) {
    struct winsize size = {.ws_row = rows, .ws_col = cols};
    if (master >= 0) ioctl(master, TIOCSWINSZ, &size);
}

/* gVisor cannot give the slave by descriptor; there, /dev/pts shows the one instance that there is. */
static int open_by_name(int master) {
    char path[32];
    return ptsname_r(master, path, sizeof path) == 0 ? open(path, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
}

int terminal_open(uint16_t rows, uint16_t cols, int *slave) {
    int unlocked = 0;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0) return -1;
    if (ioctl(master, TIOCSPTLCK, &unlocked) == 0) {
        terminal_resize(master, rows, cols);
        /* By descriptor, because /dev/pts may show another instance of the file system. */
        *slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (*slave < 0 && errno == ENOTTY) *slave = open_by_name(master);
        if (*slave >= 0) return master;
    }
    int error = errno;
    close(master);
    errno = error;
    return -1;
}
