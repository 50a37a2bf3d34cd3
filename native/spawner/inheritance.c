/* What a cell must not inherit from the process that started the spawner. */
#include <fcntl.h>
#include <linux/keyctl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spawner.h"

static const char score[] = "/proc/self/oom_score_adj";
static bool adjusted;

void inheritance_note(void) {
    char text[16] = "";
    int file = open(score, O_RDONLY | O_CLOEXEC);
    adjusted = file >= 0 && read(file, text, sizeof text - 1) > 0 && strtol(text, NULL, 10) != 0;
    if (file >= 0) close(file);
    (void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL); /* the user's own session has keys in its keyring */
}

void inheritance_leave(void) {
    /* Only root can lower the OOM score below the value that root set last, so a cell cannot lower its own further. */
    if (adjusted) (void)write_file(score, "0");
}
