"""The mounts of this host, from the kernel's list. The file systems themselves are not accessed: a network file system
whose server does not answer would block us."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from dutyfree.values import dataclass

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's list."""

    path: str
    kind: str
    """The type of the file system: ext4, overlay, tmpfs, fuse.sshfs ..."""
    device: str
    """Major and minor number. (Not `st_dev`, which differs between the subvolumes of one btrfs.)"""


def read() -> tuple[Mount, ...]:
    """All mounts that this process sees, oldest first; a later mount hides an earlier one at the same path."""
    return parse(Path("/proc/self/mountinfo").read_bytes())


def parse(mountinfo: bytes) -> tuple[Mount, ...]:
    """The mounts in the text of a process's `mountinfo`."""
    found = []
    for line in filter(None, mountinfo.split(b"\n")):  # not `splitlines`: a path may contain other line separators
        before, _, after = line.partition(b" - ")
        words = before.split(b" ")
        path = os.fsdecode(_OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), words[4]))
        found.append(Mount(path, os.fsdecode(after.split(b" ", 1)[0]), os.fsdecode(words[2])))
    return tuple(found)


EMPTY_IN_PROC = ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/openprom", "/proc/fs/ntfs")
"""Empty directories of /proc that exist only as mount points: a mount there hides nothing."""


def is_masked_proc(mounts: Iterable[Mount]) -> bool:
    """Whether something is mounted over parts of /proc, as container engines do. The kernel gives an ordinary user a
    new /proc only where the old one can be seen whole."""
    return any(mount.path.startswith("/proc/") and mount.path not in EMPTY_IN_PROC for mount in mounts)


def devices_of(mounts: Iterable[Mount], paths: Iterable[str]) -> set[str]:
    """The devices of the file systems that contain these paths, which must not have links."""
    table = {mount.path: mount.device for mount in mounts}
    found = set()
    for path in paths:
        parents = [path, *(str(parent) for parent in Path(path).parents)]
        found.add(next((table[parent] for parent in parents if parent in table), ""))
    return found
