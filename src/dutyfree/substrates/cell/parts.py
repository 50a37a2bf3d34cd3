"""Parts: the directories and files of the host's root that are mounted separately in each cell.

They need separate mounts because they are mount points of the host, or contain some. A part that cannot be overlaid is
shown read-only, and a part that cannot be shown is hidden. All functions except `look` are pure.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path, PurePosixPath

from dutyfree.substrates.cell.mounts import Mount
from dutyfree.values import dataclass

SYSTEM_TREES = ("/bin", "/etc", "/gnu", "/lib", "/lib64", "/nix", "/opt", "/sbin", "/snap", "/srv", "/usr", "/var")
"""A file system mounted here belongs to the host's installation. Elsewhere it is data, which cells do not see."""
KERNEL_KINDS = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs",
    "tracefs",
})  # fmt: skip
"""File systems that are interfaces to the kernel."""
REMOTE_KINDS = ("fuse", "nfs", "cifs", "smb", "ceph", "9p", "afs", "lustre", "glusterfs", "virtiofs")
"""File systems served by another machine or process. We must not wait for one that does not answer."""
MAX_PARTS = 128
MAX_PIECES = 48
"""A directory that would be split into more parts than this is shown read-only as a whole."""
MAX_DEPTH = 4


class Showing(StrEnum):
    """How a cell sees a part."""

    OVERLAID = "overlaid"
    """An overlay over the host's directory: changes stay in the cell."""
    READ_ONLY = "read-only"
    TAKEN_APART = "taken apart"
    """A directory of the mask layer that contains the host's directories as parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A directory or file below `/` that is mounted separately in each cell."""

    path: str
    showing: Showing = Showing.OVERLAID
    reason: str = ""
    """Why the part is not overlaid."""
    mode: int = 0o755
    is_directory: bool = True
    number: int = 0
    """The spawner keeps the part at `/parts/NUMBER`, so that the host's path is not looked up again for each cell."""
    links: tuple[tuple[str, str], ...] = ()
    """The symlinks of a directory that is taken apart, with their targets."""

    @property
    def place(self) -> str:
        """The spawner's path for the part."""
        return f"/parts/{self.number}"

    @property
    def is_overlaid(self) -> bool:
        """Whether a cell may change its own view of the part."""
        return self.showing is Showing.OVERLAID

    def as_it_is(self, reason: str) -> Part:
        """The same part, read-only."""
        return replace(self, showing=Showing.READ_ONLY, reason=reason)


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a directory of the host."""

    directories: tuple[tuple[str, int], ...] = ()
    """The names and modes of the directories."""
    links: tuple[tuple[str, str], ...] = ()
    files: int = 0


def look(path: str, spared: Collection[str] = ()) -> Listing | None:
    """List a directory; None if this user may not read it. Directories in `spared` may hang, so no `stat` for them."""
    directories, links, files = [], [], 0
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.is_symlink():
                    links.append((entry.name, str(Path(entry.path).readlink())))
                elif entry.path in spared:
                    directories.append((entry.name, 0o755))
                elif entry.is_dir(follow_symlinks=False):
                    directories.append((entry.name, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)))
                else:
                    files += 1
    except OSError:
        return None
    return Listing(tuple(directories), tuple(links), files)


def is_below(path: str, directories: Iterable[str]) -> bool:
    """Whether the path is one of the directories, or below one of them."""
    return any(path == directory or path.startswith(directory + "/") for directory in directories)


def is_open(mode: int) -> bool:
    """Whether every user may read a directory with this mode."""
    return mode & 0o005 == 0o005


def is_remote(kind: str) -> bool:
    """Whether access to a file system of this type may hang."""
    return kind.startswith(REMOTE_KINDS)


def of_installation(mounts: Iterable[Mount], hidden: Iterable[str]) -> list[Mount]:
    """The mounts of the host's installation that are not hidden, one for each path; each is after its parent."""
    hidden = list(hidden)
    last = {mount.path: mount for mount in mounts if mount.path != "/"}
    seen = [mount for path, mount in last.items() if is_below(path, SYSTEM_TREES) and not is_below(path, hidden)]
    return sorted(seen, key=lambda mount: mount.path)


def not_for_cells(mounts: Iterable[Mount], *, in_pod: bool) -> list[str]:
    """Mounts that are always hidden: the kernel's own file systems, and in a pod those that may contain its secrets."""
    kinds = KERNEL_KINDS | ({"tmpfs", "ramfs"} if in_pod else set())
    return [mount.path for mount in mounts if mount.kind in kinds and is_below(mount.path, SYSTEM_TREES)]


def for_root(mounts: Iterable[Mount], mode_of: Callable[[str], int | None]) -> tuple[Part, ...]:
    """The parts of cells made by root: root can overlay every mounted directory separately from the rest of `/`.

    A mount below a directory that not every user may read is left out: the cell has its own directories on the way to a
    part, and these would be open. `mode_of`: the type and mode of a path; None if it does not exist.
    """
    parts: list[Part] = []
    as_it_is: list[str] = []
    for mount in mounts:
        ways = [str(parent) for parent in PurePosixPath(mount.path).parents]
        if is_below(mount.path, as_it_is) or not all(is_open(mode_of(way) or 0) for way in ways):
            continue  # the part above already includes it, or cells cannot reach it
        if is_remote(mount.kind):
            parts.append(Part(mount.path).as_it_is(_remote(mount.kind)))
            as_it_is.append(mount.path)
            continue
        mode = mode_of(mount.path) or 0
        if stat.S_ISDIR(mode) and is_open(mode):
            parts.append(_named(Part(mount.path, mode=stat.S_IMODE(mode))))
        elif stat.S_ISREG(mode):
            parts.append(Part(mount.path, is_directory=False).as_it_is("a single file is mounted there"))
    return tuple(parts[:MAX_PARTS])


def _named(part: Part) -> Part:
    """The part; read-only if its path has a character that is a separator in the kernel's mount options."""
    odd = any(letter in ",:\\" or ord(letter) < ord(" ") for letter in part.path)
    return part.as_it_is("its path has characters that mount options cannot contain") if odd else part


def for_user(
    directories: Iterable[tuple[str, int]],
    mounts: Iterable[Mount],
    hidden: Iterable[str],
    listing: Callable[[str, Collection[str]], Listing | None] = look,
) -> tuple[Part, ...]:
    """The parts of rootless cells. Without privileges, a directory with a mount below it cannot be overlaid.

    Such a directory is taken apart. `directories`: those of the host's `/` that cells see, with their modes.
    """
    kinds, hidden = {mount.path: mount.kind for mount in mounts}, list(hidden)
    remote = [path for path, kind in kinds.items() if is_remote(kind)]

    def taken_apart(whole: Part, depth: int) -> list[Part]:
        path = whole.path
        if path in remote:
            return [whole.as_it_is(_remote(kinds[path]))]
        below = [each for each in kinds if each.startswith(path + "/")]
        if not below:
            return [_named(whole)]
        found = listing(path, remote) if depth < MAX_DEPTH else None
        if found is None or found.files or len(found.directories) > MAX_PIECES:
            return [whole.as_it_is(_because_of(below))]
        parts = [replace(whole, showing=Showing.TAKEN_APART, links=found.links)]
        for name, mode in found.directories:
            inner = Part(f"{path}/{name}", mode=mode)
            if is_open(mode) and not is_below(inner.path, hidden):
                parts += taken_apart(inner, depth + 1)
        return parts if len(parts) <= MAX_PIECES else [whole.as_it_is(_because_of(below))]

    return tuple(part for path, mode in directories for part in taken_apart(Part(path, mode=mode), 0))


def _remote(kind: str) -> str:
    return f"{kind} file systems are shown read-only"


def _because_of(below: list[str]) -> str:
    if len(below) == 1:
        return f"{below[0]} is mounted below it"
    return f"{min(below)} and {len(below) - 1} more are mounted below it"
