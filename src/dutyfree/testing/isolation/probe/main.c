#include "probe.h"

#include <signal.h>
#include <sys/wait.h>

static _Noreturn void say(const char *verdict, const char *detail, int code)
{
    printf("%s%s%s\n", verdict, detail && *detail ? " " : "", detail ? detail : "");
    fflush(stdout);
    _exit(code);
}

void allowed(const char *detail) { say("allowed", detail, 0); }
void value(const char *text) { say("value", text, 0); }
void broken(const char *text) { say("broken", text, 2); }

void denied(int error)
{
    char text[16];
    snprintf(text, sizeof text, "%d", error);
    say("denied", text, 1);
}

void judge(long result)
{
    if (result < 0)
        denied(errno);
    allowed(NULL);
}

void judge_permission(long result)
{
    if (result < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS))
        denied(errno);
    allowed(result < 0 ? strerror(errno) : NULL);
}

int in_child(int (*body)(void *), void *argument)
{
    pid_t child = fork();
    if (child < 0)
        broken("fork failed");
    if (child == 0)
        _exit(body(argument));
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            broken("waitpid failed");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

pid_t number(const char *text)
{
    char *end = NULL;
    long result = strtol(text, &end, 10);
    if (!*text || *end)
        broken("an argument is not a number");
    return (pid_t)result;
}

void join(char *into, size_t size, const char *directory, const char *name)
{
    int length = snprintf(into, size, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= size)
        broken("a path is too long");
}

enum { HOLD_S = 60 };

void hold(long (*take)(long), long most)
{
    int ends[2];
    long count = 0;
    char text[24];
    if (pipe2(ends, O_CLOEXEC) < 0)
        broken("no pipe");
    pid_t child = fork();
    if (child < 0)
        broken("fork failed");
    if (child > 0) {
        if (read(ends[0], &count, sizeof count) != (ssize_t)sizeof count)
            broken("the holder died");
        snprintf(text, sizeof text, "%ld", count);
        value(text);
    }
    setsid();
    for (int i = 0; i < 3; i++)
        close(i);
    count = take(most);
    if (write(ends[1], &count, sizeof count) < 0)
        _exit(1);
    sleep(HOLD_S);
    _exit(0);
}

static void search(const struct probe *table, int argc, char **argv)
{
    for (; table->name; table++)
        if (strcmp(table->name, argv[1]) == 0) {
            if (argc - 2 != table->arguments)
                broken("wrong number of arguments");
            table->try(argv + 2);
            broken("no verdict");
        }
}

int main(int argc, char **argv)
{
    const struct probe *const tables[] = {
        kernel_probes,    mount_probes,   file_probes,       process_probes,
        privilege_probes, network_probes, exhaustion_probes, ordinary_probes,
        user_probes, buffer_probes,
    };
    if (argc < 2)
        broken("usage: probe NAME ARGUMENT...");
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        search(tables[i], argc, argv);
    broken("no such probe");
}
