"""File ownership: how the store maps the user and group ids of an image to ids on this machine's disk."""

from __future__ import annotations

import os
from pathlib import Path

from dutyfree.errors import ArchiveRefused
from dutyfree.values import dataclass

SUBORDINATE_IDS = 0x7000_0000
"""The first host id for images and for cells of root. No distribution or systemd component uses this range, so a
program that is set-uid root in an image belongs to an unused id on the host."""
SUBORDINATE_COUNT = 65536
ROOT_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_ADMIN": 12, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27, "SETFCAP": 31,
}  # fmt: skip
"""The capabilities that root needs to make cells, with the kernel's numbers. Container engines grant most of them.
NET_ADMIN sets up the loopback interface; SYS_PTRACE inspects a cell from outside."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Root's store adds `shift` to each id; an ordinary user (`shift` is None) owns all files of the store."""

    shift: int | None

    @classmethod
    def here(cls) -> Ownership:
        """The ownership that this process can use."""
        return cls(SUBORDINATE_IDS if is_root() else None)

    def stored(self, number: int) -> int:
        """The disk id for an image id. Without a shift -1, which chown ignores. Raises ArchiveRefused."""
        if not 0 <= number < SUBORDINATE_COUNT:
            hint = f"sandboxes have ids below {SUBORDINATE_COUNT}; build the image with smaller ones"
            raise ArchiveRefused(f"a file belongs to id {number}", hint=hint)
        return -1 if self.shift is None else self.shift + number

    def shown(self, number: int) -> int:
        """The image id for a disk id; ids outside the range become root's."""
        if self.shift is None or not self.shift <= number < self.shift + SUBORDINATE_COUNT:
            return 0
        return number - self.shift

    @property
    def opaque_xattr(self) -> str:
        """The extended attribute that marks a directory as opaque: it hides the same directory of lower layers."""
        return "user.overlay.opaque" if self.shift is None else "trusted.overlay.opaque"


def is_root() -> bool:
    """Whether this process is root and has the capabilities to make cells and to own layers.

    Root in a user namespace may lack other ids, and root in a container may lack capabilities: both count as ordinary
    users.
    """
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return False
    return not missing_capabilities(Path("/proc/self/status").read_text())


def missing_capabilities(status: str) -> list[str]:
    """The `ROOT_CAPABILITIES` that a process lacks; `status` is the text of its /proc/PID/status."""
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    effective = int(line.split()[1], 16)
    return [name for name, number in ROOT_CAPABILITIES.items() if not effective >> number & 1]


def has_roots_id() -> bool:
    """Whether the kernel treats this user as root even without capabilities: for example, it may write to /proc/sys.

    That is so if this user is uid 0 outside all user namespaces.
    """
    user = os.geteuid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= user < inside + count:
            return outside + user - inside == 0
    return False
