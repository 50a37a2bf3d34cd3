/* dutyfree-init: the first process of a microVM, started from its initrd.
 *
 * It loads the kernel's modules, reports to the host, and waits for the host's order. At that point machines are saved and
 * cloned. Then it builds the sandbox's root, sets its limits, and executes the guest. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "clock.h"
#include "machine.h"
#include "order.h"

enum { PORT_WAIT_MS = 10000, PAUSE_MS = 2 };

static int control = -1;

/* Report the error to the host and to the console, which may have no reader. */
static void give_up(const char *what) {
    char text[160];
    int length = snprintf(text, sizeof text, "%s: %s\n", what, strerror(errno));
    int console = open("/dev/console", O_WRONLY | O_CLOEXEC);
    if (write(console, text, (size_t)length) < 0) errno = 0;
    if (write(control, text, (size_t)length) < 0) errno = 0;
    reboot(RB_AUTOBOOT);
    _exit(1);
}

static void must(bool done, const char *what) {
    if (!done) give_up(what);
}

/* Read all of it. The host may not be connected yet, which reads as the end of the stream. */
static void receive(void *bytes, size_t size) {
    for (size_t have = 0; have < size;) {
        ssize_t got = read(control, (char *)bytes + have, size - have);
        if (got > 0) {
            have += (size_t)got;
        } else if (got < 0 && errno != EINTR) {
            give_up("cannot read the host's order");
        } else {
            usleep(PAUSE_MS * 1000);
        }
    }
}

static bool find_port(const char *name, char *path, size_t size) {
    for (int waited_ms = 0; waited_ms < PORT_WAIT_MS; waited_ms += PAUSE_MS) {
        if (machine_find_port(name, path, size)) return true;
        usleep(PAUSE_MS * 1000);
    }
    errno = ENODEV;
    return false;
}

int main(int argc, char **argv) {
    if (getpid() != 1) return argc == 2 && strcmp(argv[1], "--tsc") == 0 ? clock_tell() : 2;
    must(machine_mount_kernel_files(), "cannot mount the kernel's file systems");
    must(machine_load_modules(), "cannot load a module");
    char path[64];
    char control_path[64];
    must(find_port("dutyfree", path, sizeof path), "there is no port for the stream");
    must(find_port("dutyfree-control", control_path, sizeof control_path), "there is no port to the host");
    control = open(control_path, O_RDWR | O_CLOEXEC);
    int stream = open(path, O_RDWR);
    must(control >= 0 && stream >= 0, "cannot open the ports to the host");
    must(machine_prepare(), "cannot prepare the machine");
    int guest = open("/guest", O_RDONLY | O_CLOEXEC);
    must(guest >= 0, "there is no guest");
    must(write(control, ORDER_READY, 1) == 1, "cannot reach the host");

    uint8_t bytes[ORDER_BYTES];
    receive(bytes, sizeof bytes);
    struct order order;
    must(order_read(bytes, &order), "an order that cannot be read");
    must(machine_set_bounds(&order), "cannot set the sandbox's bounds");
    must(machine_make_root(&order), "cannot put the root together");
    must(machine_enter_root(), "cannot enter the root");

    char number[16];
    snprintf(number, sizeof number, "%d", stream);
    char *const guest_argv[] = {(char *)"dutyfree-guest", (char *)"--fd", number, (char *)"--machine", path, control_path, NULL};
    char *const envp[] = {NULL};
    fexecve(guest, guest_argv, envp);
    give_up("cannot become the guest");
}
