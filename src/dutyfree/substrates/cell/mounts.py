"""What is mounted on this host, read from the kernel's list, without a look into the file systems themselves: one that
does not answer (a network file system whose server is away) would hold us up."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's list."""

    path: str
    kind: str
    """Of the file system: ext4, overlay, tmpfs, fuse.sshfs ..."""
    device: str
    """Major and minor number. (`st_dev` would tell parts of one btrfs apart.)"""


def read() -> tuple[Mount, ...]:
    """All mounts that this process can see, in the order in which they were made; a later one hides an earlier one."""
    return parse(Path("/proc/self/mountinfo").read_bytes())


def parse(mountinfo: bytes) -> tuple[Mount, ...]:
    """From the text of a process's `mountinfo`."""
    found = []
    for line in filter(None, mountinfo.split(b"\n")):  # a name may have any other end of a line in it
        before, _, after = line.partition(b" - ")
        words = before.split(b" ")
        path = os.fsdecode(_OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), words[4]))
        found.append(Mount(path, os.fsdecode(after.split(b" ", 1)[0]), os.fsdecode(words[2])))
    return tuple(found)


EMPTY_IN_PROC = ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/openprom", "/proc/fs/ntfs")
"""Directories of /proc that are there to be mounted on: what covers them hides nothing."""


def is_masked_proc(mounts: Iterable[Mount]) -> bool:
    """Whether something is mounted over parts of /proc, as container engines do. The kernel gives an ordinary user a
    new /proc only where the old one can be seen whole."""
    return any(mount.path.startswith("/proc/") and mount.path not in EMPTY_IN_PROC for mount in mounts)


def devices_of(mounts: Iterable[Mount], paths: Iterable[str]) -> set[str]:
    """The file systems that these paths, free of links, are on."""
    table = {mount.path: mount.device for mount in mounts}
    found = set()
    for path in paths:
        parents = [path, *(str(parent) for parent in Path(path).parents)]
        found.add(next((table[parent] for parent in parents if parent in table), ""))
    return found
