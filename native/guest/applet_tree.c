/* Applets for whole trees: pack, unpack. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet_io.h"
#include "applets.h"
#include "tar.h"
#include "walk.h"

static char failed[PATH_MAX];

int applet_pack(char *const *arguments) {
    int root = open(arguments[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return applet_failed(errno, NULL);
    return tar_write(STDOUT_FILENO, root, failed) ? 0 : applet_failed(errno, failed);
}

static ssize_t read_stdin(struct tar_source *source, void *buffer, size_t bytes) {
    (void)source;
    return read_full(STDIN_FILENO, buffer, bytes);
}

int applet_unpack(char *const *arguments) {
    struct tar_source source = {.read = read_stdin};
    char rest[COPY_BYTES / 16];
    if (!make_parents(arguments[0])) return applet_failed(errno, NULL);
    if (mkdir(arguments[0], 0755) != 0 && errno != EEXIST) return applet_failed(errno, NULL);
    int root = open(arguments[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return applet_failed(errno, NULL);
    if (!tar_place(&source, root, failed)) return applet_failed(errno, failed[0] != '\0' ? failed : NULL);
    while (read_full(STDIN_FILENO, rest, sizeof rest) > 0) continue; /* read the padding, so that the sender gets no EPIPE */
    return 0;
}
