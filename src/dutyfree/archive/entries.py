"""One entry of an archive, and what its name may be."""

from __future__ import annotations

import enum
from dataclasses import field

from dutyfree.archive.limits import ArchiveLimits
from dutyfree.errors import ArchiveRefused
from dutyfree.formatting import quoted
from dutyfree.values import dataclass

WHITEOUT_PREFIX = b".wh."
OPAQUE_NAME = b".wh..wh..opq"
"""In an archive, the mark of a directory that hides what lies below it."""
META_PREFIX = b".wh..wh."
"""Notes that AUFS made for itself; old images still have them."""


class Kind(enum.Enum):
    """What an entry is."""

    FILE = "file"
    HARD_LINK = "hard link"
    SYMLINK = "symlink"
    DIRECTORY = "directory"
    FIFO = "fifo"
    DEVICE = "device"


@dataclass(slots=True)
class Entry:
    """As an archive states it: nothing of this has been checked against anything, but for its form."""

    name: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    target: bytes = b""
    xattrs: dict[str, bytes] = field(default_factory=dict)
    extents: list[tuple[int, int]] = field(default_factory=list)
    """Where the content lies in the file, as (offset, length), in order; what is between are holes."""


class ArchiveTooLarge(ArchiveRefused):
    """An archive that may be whole, but has more entries or bytes than the limits allow."""


def refused(name: bytes, why: str, hint: str | None = None) -> ArchiveRefused:
    """The refusal of an archive for one entry of it."""
    return ArchiveRefused(f"archive entry {quoted(name)} {why}", hint=hint)


def path_of(name: bytes, entry: bytes, limits: ArchiveLimits) -> tuple[bytes, ...]:
    """The components of a name, or link target, of `entry`; none for the root. Raises ArchiveRefused."""
    if len(name) > limits.path_bytes:
        raise refused(entry, f"has a path of {len(name)} bytes; at most {limits.path_bytes} are allowed")
    if name.startswith(b"/"):
        raise refused(entry, "has an absolute path", hint="make the archive with paths relative to its root")
    if not name:
        raise refused(entry, "has an empty path")
    if b"\0" in name:
        raise refused(entry, "has a NUL in its path")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise refused(entry, "has '..' in its path")
    if len(parts) > limits.depth:
        raise refused(entry, f"is {len(parts)} directories deep; at most {limits.depth} are allowed")
    if any(len(part) > limits.name_bytes for part in parts):
        raise refused(entry, f"has a name of more than {limits.name_bytes} bytes")
    return parts
