#include "applets.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "applet_io.h"

static const struct {
    const char *name;
    int arguments;
    int (*run)(char *const *arguments);
} APPLETS[] = {
    {"read", 3, applet_read},   {"write", 2, applet_write},   {"append", 1, applet_append}, {"list", 1, applet_list},
    {"stat", 1, applet_stat},   {"mkdir", 3, applet_mkdir},   {"move", 2, applet_move},
    {"pack", 1, applet_pack},   {"unpack", 1, applet_unpack}, {"remove", 2, applet_remove},
    {"ports", 0, applet_ports},
    {"watch", 2, applet_watch},
};

int applet_run(char *const *argv) {
    int arguments = 0;
    while (argv[1 + arguments] != NULL) arguments++;
    umask(022);
    for (size_t i = 0; i < sizeof APPLETS / sizeof *APPLETS; i++) {
        if (strcmp(argv[0], APPLETS[i].name) != 0) continue;
        return arguments == APPLETS[i].arguments ? APPLETS[i].run(argv + 1) : applet_failed(EINVAL, argv[0]);
    }
    return applet_failed(ENOSYS, argv[0]);
}
