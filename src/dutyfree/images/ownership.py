"""Whose files are whose: how the ids in an image are kept on this machine's disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import ArchiveRefused

SUBORDINATE_IDS = 0x7000_0000
"""Where the ids of images and of root-made cells begin on the host: a range that no distribution and no systemd
component uses. A program that is set-uid root in an image is nobody's on the host."""
SUBORDINATE_COUNT = 65536
ROOT_CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_ADMIN": 12, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27, "SETFCAP": 31,
}  # fmt: skip
"""What root needs for its own way of making cells, with the kernel's numbers. Container engines give most of them;
NET_ADMIN is for the loopback interface, SYS_PTRACE for a look into a cell from outside."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """As root, every id is moved up by `shift`; an ordinary user (None) owns all files, whoever owned them before."""

    shift: int | None

    @classmethod
    def here(cls) -> Ownership:
        """What this process can do."""
        return cls(SUBORDINATE_IDS if is_root() else None)

    def stored(self, number: int) -> int:
        """The id on disk for an id in an image; -1, which changes nothing, without a shift. Raises ArchiveRefused."""
        if not 0 <= number < SUBORDINATE_COUNT:
            hint = f"sandboxes have ids below {SUBORDINATE_COUNT}; build the image with smaller ones"
            raise ArchiveRefused(f"a file belongs to id {number}", hint=hint)
        return -1 if self.shift is None else self.shift + number

    def shown(self, number: int) -> int:
        """The id in an image for an id on disk; what is not in the range belongs to root there."""
        if self.shift is None or not self.shift <= number < self.shift + SUBORDINATE_COUNT:
            return 0
        return number - self.shift

    @property
    def opaque_xattr(self) -> str:
        """The attribute by which a directory hides what lies below it."""
        return "user.overlay.opaque" if self.shift is None else "trusted.overlay.opaque"


def is_root() -> bool:
    """Root with all that it takes to make cells and to own layers.

    Root of a user namespace has no other ids to give, and root of a container may have few capabilities: both are users
    like any other.
    """
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return False
    return not missing_capabilities(Path("/proc/self/status").read_text())


def missing_capabilities(status: str) -> list[str]:
    """Those of `ROOT_CAPABILITIES` that a process does not have, from the text of its `status`."""
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    effective = int(line.split()[1], 16)
    return [name for name, number in ROOT_CAPABILITIES.items() if not effective >> number & 1]


def has_roots_id() -> bool:
    """Whether the kernel takes this user for root even without capabilities: it may write to /proc/sys, for example.

    True of root that is not `is_root`; not of root in a user namespace that has ids of its own.
    """
    user = os.geteuid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= user < inside + count:
            return outside + user - inside == 0
    return False
