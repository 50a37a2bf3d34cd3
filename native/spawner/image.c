/* A disk of a cell's own, so that a limit on its size can be held on any file system: a copy of an empty ext4 image,
 * behind a loop device that the kernel lets go of by itself when the cell is gone. */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "spawner.h"

enum { ATTEMPTS = 64 }; /* another process may take the free device that the kernel named */

/* Only what was written is copied; the holes, which are nearly all of it, stay holes. */
static bool copy_sparse(int from, int to) {
    struct stat info;
    if (fstat(from, &info) < 0 || ftruncate(to, info.st_size) < 0) return false;
    for (off_t at = 0; (at = lseek(from, at, SEEK_DATA)) >= 0;) {
        off_t end = lseek(from, at, SEEK_HOLE), out = at;
        if (end < 0) return false;
        while (at < end)
            if (copy_file_range(from, &at, to, &out, (size_t)(end - at), 0) <= 0) return false;
    }
    return errno == ENXIO; /* no more data */
}

static int attach(int image) {
    struct loop_config config = {.fd = (unsigned)image, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), device = -1;
    for (int attempt = 0; control >= 0 && device < 0 && attempt < ATTEMPTS; attempt++) {
        char path[32];
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0) break;
        snprintf(path, sizeof path, "/dev/loop%d", number);
        device = open(path, O_RDWR | O_CLOEXEC);
        if (device < 0) break;
        if (ioctl(device, LOOP_CONFIGURE, &config) == 0) break;
        int error = errno;
        close(device);
        errno = error;
        device = -1;
        if (error != EBUSY) break;
    }
    int error = errno;
    if (control >= 0) close(control);
    errno = error;
    return device;
}

int image_open(const char *template, const char *path) {
    int from = open(template, O_RDONLY | O_CLOEXEC);
    if (from < 0) return -1;
    int image = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int device = image >= 0 && copy_sparse(from, image) ? attach(image) : -1;
    int error = errno;
    close(from);
    if (image >= 0) {
        unlink(path); /* the device keeps the file, so nothing is left even if we are killed */
        close(image);
    }
    errno = error;
    return device;
}
