#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet_io.h"
#include "tar.h"

enum { DEPTH_MAX = 512, PAX_BYTES = 3 * PATH_MAX };

static const uint64_t OCTAL_SIZE_MAX = 077777777777;
static const char ZEROS[2 * TAR_BLOCK_BYTES];

struct packing {
    int out;
    size_t length; /* of `path` */
    char path[PATH_MAX];
};

static void put_octal(char *field, size_t digits, uint64_t number) {
    for (size_t i = digits; i-- > 0; number >>= 3) field[i] = (char)('0' + (number & 7));
}

static void finish_header(struct tar_header *header) {
    memcpy(header->magic, "ustar", 6);
    memcpy(header->version, "00", 2);
    put_octal(header->checksum, 6, tar_checksum(header));
    header->checksum[7] = ' ';
}

/* One record, "LENGTH KEY=VALUE\n"; LENGTH counts its own digits. */
static size_t put_record(char *at, const char *key, const char *value) {
    size_t rest = 1 + strlen(key) + 1 + strlen(value) + 1;
    size_t digits = 1;
    for (size_t limit = 10; rest + digits >= limit; limit *= 10) digits++;
    size_t length = rest + digits;
    for (size_t i = digits, number = length; i-- > 0; number /= 10) at[i] = (char)('0' + number % 10);
    at += digits;
    *at++ = ' ';
    memcpy(at, key, strlen(key));
    at += strlen(key);
    *at++ = '=';
    memcpy(at, value, strlen(value));
    at[strlen(value)] = '\n';
    return length;
}

static void to_decimal(uint64_t number, char text[24]) {
    char digits[24];
    size_t used = 0;
    do {
        digits[used++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (used > 0) *text++ = digits[--used];
    *text = '\0';
}

/* What does not fit a ustar header goes in front of it. */
static bool put_extension(struct packing *packing, const char *name, const char *link, uint64_t size) {
    static char content[PAX_BYTES];
    struct tar_header header = {.type = 'x', .name = "pax"};
    size_t used = 0;
    if (strlen(name) > sizeof header.name) used += put_record(content + used, "path", name);
    if (strlen(link) > sizeof header.link) used += put_record(content + used, "linkpath", link);
    if (size > OCTAL_SIZE_MAX) {
        char digits[24];
        to_decimal(size, digits);
        used += put_record(content + used, "size", digits);
    }
    if (used == 0) return true;
    put_octal(header.mode, 7, 0644);
    put_octal(header.uid, 7, 0);
    put_octal(header.gid, 7, 0);
    put_octal(header.mtime, 11, 0);
    put_octal(header.size, 11, used);
    finish_header(&header);
    return write_full(packing->out, &header, sizeof header) && write_full(packing->out, content, used) &&
           write_full(packing->out, ZEROS, tar_padding(used));
}

static bool put_header(struct packing *packing, const struct stat *info, char type, const char *link) {
    struct tar_header header = {.type = type};
    uint64_t size = type == '0' ? (uint64_t)info->st_size : 0;
    if (!put_extension(packing, packing->path, link, size)) return false;
    memcpy(header.name, packing->path, strnlen(packing->path, sizeof header.name));
    memcpy(header.link, link, strnlen(link, sizeof header.link));
    put_octal(header.mode, 7, info->st_mode & 07777);
    put_octal(header.uid, 7, info->st_uid <= 07777777 ? info->st_uid : 0);
    put_octal(header.gid, 7, info->st_gid <= 07777777 ? info->st_gid : 0);
    put_octal(header.size, 11, size <= OCTAL_SIZE_MAX ? size : 0);
    put_octal(header.mtime, 11, info->st_mtim.tv_sec > 0 ? (uint64_t)info->st_mtim.tv_sec : 0);
    finish_header(&header);
    return write_full(packing->out, &header, sizeof header);
}

/* Writes exactly as many bytes as the header says, even if the file's size changed since. */
static bool put_content(struct packing *packing, int fd, uint64_t size) {
    uint64_t copied;
    if (!copy(fd, packing->out, size, &copied)) return false;
    for (uint64_t left = size - copied + tar_padding(size); left > 0;) {
        size_t part = left < sizeof ZEROS ? (size_t)left : sizeof ZEROS;
        if (!write_full(packing->out, ZEROS, part)) return false;
        left -= part;
    }
    return true;
}

static bool pack_file(struct packing *packing, int parent, const char *name) {
    struct stat info;
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return false;
    bool packed = fstat(fd, &info) == 0;
    if (packed && S_ISREG(info.st_mode)) {
        packed = put_header(packing, &info, '0', "") && put_content(packing, fd, (uint64_t)info.st_size);
    }
    int error = errno;
    close(fd);
    errno = error;
    return packed;
}

static bool pack_symlink(struct packing *packing, int parent, const char *name, const struct stat *info) {
    char target[PATH_MAX];
    ssize_t length = readlinkat(parent, name, target, sizeof target - 1);
    if (length < 0) return false;
    target[length] = '\0';
    return put_header(packing, info, '2', target);
}

static bool pack_below(struct packing *packing, int directory_fd, int depth);

static bool pack_directory(struct packing *packing, int parent, const char *name, const struct stat *info, int depth) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT; /* gone meanwhile */
    if (packing->length + 2 > sizeof packing->path || depth >= DEPTH_MAX) {
        close(fd);
        errno = ENAMETOOLONG;
        return false;
    }
    packing->path[packing->length++] = '/';
    packing->path[packing->length] = '\0';
    if (put_header(packing, info, '5', "")) return pack_below(packing, fd, depth + 1);
    int error = errno;
    close(fd);
    errno = error;
    return false;
}

static bool pack_entry(struct packing *packing, int parent, const char *name, int depth) {
    struct stat info;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT; /* gone meanwhile */
    if (S_ISREG(info.st_mode)) return pack_file(packing, parent, name) || errno == ENOENT;
    if (S_ISLNK(info.st_mode)) return pack_symlink(packing, parent, name, &info) || errno == ENOENT;
    if (S_ISDIR(info.st_mode)) return pack_directory(packing, parent, name, &info, depth);
    return true; /* skip fifos, sockets and devices */
}

/* Takes the descriptor. On failure the path of what is at fault stays in `packing`. */
static bool pack_below(struct packing *packing, int directory_fd, int depth) {
    DIR *directory = fdopendir(directory_fd);
    if (directory == NULL) {
        close(directory_fd);
        return false;
    }
    size_t length = packing->length;
    bool packed = true;
    struct dirent *entry;
    while (packed && (errno = 0, entry = readdir(directory)) != NULL) {
        size_t name = strlen(entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        packed = length + name + 1 < sizeof packing->path;
        if (!packed) {
            errno = ENAMETOOLONG;
            break;
        }
        memcpy(packing->path + length, entry->d_name, name + 1);
        packing->length = length + name;
        packed = pack_entry(packing, dirfd(directory), entry->d_name, depth);
    }
    int error = errno;
    closedir(directory);
    errno = error;
    if (packed) packing->length = length;
    return packed && error == 0;
}

bool tar_write(int out, int root, char failed[PATH_MAX]) {
    static struct packing packing;
    packing = (struct packing){.out = out, .length = 2, .path = "./"};
    bool packed = pack_below(&packing, root, 0) && write_full(out, ZEROS, sizeof ZEROS);
    memcpy(failed, packing.path, PATH_MAX);
    return packed;
}
