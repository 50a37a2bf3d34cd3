/* Reading, writing, listing and connecting to paths. */
#include "probe.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static void read_file(char **arguments)
{
    static char text[4096];
    int file = open(arguments[0], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (got < 0)
        denied(errno);
    for (ssize_t i = 0; i < got; i++)
        if (text[i] == '\n' || text[i] == '\0')
            text[i] = ' ';
    text[got] = '\0';
    value(text);
}

static void open_file(char **arguments)
{
    int mode = arguments[0][0] == 'w' ? O_WRONLY : O_RDONLY;
    judge(open(arguments[1], mode | O_NONBLOCK | O_CLOEXEC));
}

static void create_file(char **arguments)
{
    int file = open(arguments[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0)
        denied(errno);
    judge(write(file, "probe\n", 6));
}

static void append_file(char **arguments)
{
    int file = open(arguments[0], O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0)
        denied(errno);
    judge(write(file, arguments[1], strlen(arguments[1])));
}

static void count_entries(char **arguments)
{
    DIR *directory = opendir(arguments[0]);
    if (!directory)
        denied(errno);
    long count = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            count++;
    char text[32];
    snprintf(text, sizeof text, "%ld", count);
    value(text);
}

static void connect_unix(char **arguments)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *name = arguments[0];
    size_t length = strlen(name);
    if (length + 1 > sizeof address.sun_path)
        broken("a socket's name is too long");
    memcpy(address.sun_path, name, length);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
    int error = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int client = socket(AF_UNIX, kinds[i] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
        if (client >= 0 && connect(client, (struct sockaddr *)&address, size) == 0)
            allowed(NULL);
        error = errno;
        if (error != EPROTOTYPE)
            break;
    }
    denied(error);
}

/* The kernel hides the addresses of its symbols by showing zeroes. */
static void kernel_addresses(char **arguments)
{
    (void)arguments;
    FILE *symbols = fopen("/proc/kallsyms", "re");
    unsigned long long address = 0;
    if (!symbols)
        denied(errno);
    while (fscanf(symbols, "%llx %*[^\n]", &address) == 1)
        if (address)
            allowed("an address that is not zero");
    denied(EPERM);
}

const struct probe file_probes[] = {
    {"read-file", 1, read_file},
    {"open-file", 2, open_file},
    {"create-file", 1, create_file},
    {"append-file", 2, append_file},
    {"count-entries", 1, count_entries},
    {"connect-unix", 1, connect_unix},
    {"kernel-addresses", 0, kernel_addresses},
    {NULL, 0, NULL},
};
