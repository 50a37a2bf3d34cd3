#include <errno.h>
#include <string.h>

#include "tar.h"

struct overrides {
    bool has_name;
    bool has_link;
    bool has_size;
    uint64_t size;
};

static int malformed(void) {
    errno = EINVAL;
    return -1;
}

size_t tar_padding(uint64_t size) {
    return (TAR_BLOCK_BYTES - size % TAR_BLOCK_BYTES) % TAR_BLOCK_BYTES;
}

unsigned tar_checksum(const struct tar_header *header) {
    const uint8_t *bytes = (const uint8_t *)header;
    size_t start = offsetof(struct tar_header, checksum);
    unsigned sum = 0;
    for (size_t i = 0; i < TAR_BLOCK_BYTES; i++) {
        sum += i >= start && i < start + sizeof header->checksum ? ' ' : bytes[i];
    }
    return sum;
}

/* Octal digits, or GNU's big-endian binary when the top bit is set. */
static bool parse_field(const char *field, size_t length, uint64_t *number) {
    const uint8_t *bytes = (const uint8_t *)field;
    uint64_t value = 0;
    size_t at = 0;
    if (bytes[0] & 0x80) {
        value = bytes[0] & 0x3f;
        for (at = 1; at < length; at++) {
            if (value >> 55) return false;
            value = value << 8 | bytes[at];
        }
        *number = value;
        return (bytes[0] & 0x40) == 0; /* negative */
    }
    while (at < length && bytes[at] == ' ') at++;
    for (; at < length && bytes[at] >= '0' && bytes[at] <= '7'; at++) {
        if (value >> 60) return false;
        value = value << 3 | (uint64_t)(bytes[at] - '0');
    }
    *number = value;
    return at == length || bytes[at] == '\0' || bytes[at] == ' ';
}

static bool set_text(char text[PATH_MAX], const char *from, size_t length) {
    length = strnlen(from, length);
    if (length >= PATH_MAX) return false;
    memcpy(text, from, length);
    text[length] = '\0';
    return true;
}

static bool read_block(struct tar_source *source, void *block, size_t bytes) {
    ssize_t got = source->read(source, block, bytes);
    if (got >= 0 && (size_t)got != bytes) errno = EINVAL;
    return got >= 0 && (size_t)got == bytes;
}

/* A 1 for a header, 0 for the end (zeros, or no more bytes), -1 with errno. */
static int read_header(struct tar_source *source, struct tar_header *header) {
    static const struct tar_header zeros;
    ssize_t got = source->read(source, header, sizeof *header);
    if (got <= 0) return (int)got;
    if (got != TAR_BLOCK_BYTES) return malformed();
    if (memcmp(header, &zeros, sizeof zeros) == 0) return 0;
    uint64_t checksum;
    if (!parse_field(header->checksum, sizeof header->checksum, &checksum)) return malformed();
    return checksum == tar_checksum(header) ? 1 : malformed();
}

/* The content of an extension header: bounded, and ended with a NUL. */
static bool read_extension(struct tar_source *source, uint64_t size, char *content) {
    if (size > TAR_EXTENSION_MAX_BYTES) {
        errno = EINVAL;
        return false;
    }
    content[size] = '\0';
    char padding[TAR_BLOCK_BYTES];
    return read_block(source, content, size) && read_block(source, padding, tar_padding(size));
}

static bool take_record(const char *key, size_t key_length, const char *value, size_t length, struct tar_entry *entry,
                        struct overrides *overrides) {
    if (memchr(value, 0, length) != NULL) return false;
    if (key_length == 4 && memcmp(key, "path", 4) == 0) {
        overrides->has_name = true;
        return set_text(entry->name, value, length);
    }
    if (key_length == 8 && memcmp(key, "linkpath", 8) == 0) {
        overrides->has_link = true;
        return set_text(entry->link, value, length);
    }
    if (key_length == 4 && memcmp(key, "size", 4) == 0) {
        overrides->has_size = true;
        overrides->size = 0;
        for (size_t i = 0; i < length; i++) {
            if (value[i] < '0' || value[i] > '9' || overrides->size > INT64_MAX / 10 - 10) return false;
            overrides->size = overrides->size * 10 + (uint64_t)(value[i] - '0');
        }
    }
    return true;
}

/* Records "LENGTH KEY=VALUE\n", where LENGTH counts all of it. */
static bool take_records(const char *content, size_t left, struct tar_entry *entry, struct overrides *overrides) {
    while (left > 0) {
        size_t length = 0;
        size_t digits = 0;
        while (digits < left && digits < 6 && content[digits] >= '0' && content[digits] <= '9') {
            length = length * 10 + (size_t)(content[digits++] - '0');
        }
        if (digits == 0 || length > left || length < digits + 4) return false;
        if (content[digits] != ' ' || content[length - 1] != '\n') return false;
        const char *key = content + digits + 1;
        size_t rest = length - digits - 2; /* KEY=VALUE */
        const char *equals = memchr(key, '=', rest);
        if (equals == NULL) return false;
        size_t key_length = (size_t)(equals - key);
        if (!take_record(key, key_length, equals + 1, rest - key_length - 1, entry, overrides)) return false;
        content += length;
        left -= length;
    }
    return true;
}

static bool take_extension(char type, const char *content, size_t size, struct tar_entry *entry,
                           struct overrides *overrides) {
    switch (type) {
    case 'L': overrides->has_name = true; return set_text(entry->name, content, size);
    case 'K': overrides->has_link = true; return set_text(entry->link, content, size);
    case 'x': return take_records(content, size, entry, overrides);
    default: return true; /* 'g': what holds for all entries does not matter here */
    }
}

static bool take_name(const struct tar_header *header, struct tar_entry *entry) {
    size_t prefix = memcmp(header->magic, "ustar", 6) == 0 ? strnlen(header->prefix, sizeof header->prefix) : 0;
    size_t name = strnlen(header->name, sizeof header->name);
    memcpy(entry->name, header->prefix, prefix);
    if (prefix > 0) entry->name[prefix++] = '/';
    memcpy(entry->name + prefix, header->name, name);
    entry->name[prefix + name] = '\0';
    return prefix + name > 0;
}

static bool take_kind(char type, struct tar_entry *entry) {
    size_t length = strlen(entry->name);
    switch (type) {
    case '\0':
    case '0':
    case '7': entry->kind = length > 0 && entry->name[length - 1] == '/' ? TAR_DIRECTORY : TAR_FILE; return true;
    case '1': entry->kind = TAR_HARDLINK; return true;
    case '2': entry->kind = TAR_SYMLINK; return true;
    case '5': entry->kind = TAR_DIRECTORY; return true;
    case '3':
    case '4':
    case '6': entry->kind = TAR_FORBIDDEN; return true;
    default: return false;
    }
}

static bool take_header(const struct tar_header *header, uint64_t size, struct tar_entry *entry,
                        const struct overrides *overrides) {
    uint64_t mode;
    uint64_t mtime;
    if (!overrides->has_name && !take_name(header, entry)) return false;
    if (!overrides->has_link && !set_text(entry->link, header->link, sizeof header->link)) return false;
    if (!parse_field(header->mode, sizeof header->mode, &mode)) return false;
    if (!parse_field(header->mtime, sizeof header->mtime, &mtime) || mtime > INT64_MAX) return false;
    if (!take_kind(header->type, entry)) return false;
    entry->mode = (mode_t)(mode & 01777);
    entry->mtime_s = (int64_t)mtime;
    entry->size = entry->kind == TAR_FILE ? (overrides->has_size ? overrides->size : size) : 0;
    return entry->kind == TAR_FILE || size == 0;
}

int tar_next(struct tar_source *source, struct tar_entry *entry) {
    static char content[TAR_EXTENSION_MAX_BYTES + 1];
    struct overrides overrides = {0};
    while (true) {
        struct tar_header header;
        uint64_t size;
        int found = read_header(source, &header);
        if (found <= 0) return found;
        if (!parse_field(header.size, sizeof header.size, &size) || size > INT64_MAX) return malformed();
        if (header.type == '\0' || strchr("LKxg", header.type) == NULL) {
            return take_header(&header, size, entry, &overrides) ? 1 : malformed();
        }
        if (!read_extension(source, size, content)) return -1;
        if (!take_extension(header.type, content, size, entry, &overrides)) return malformed();
    }
}
