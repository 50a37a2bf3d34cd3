"""How much an archive may be of anything."""

from __future__ import annotations

from typing import Final

from dutyfree.values import dataclass

MAX_ENTRIES: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What is past these is refused while it is read, not after."""

    bytes: int = 64 * 1024**3
    """Of all content together, holes of sparse files included; of what is packed, headers as well."""
    entries: int = MAX_ENTRIES
    path_bytes: int = 4096
    name_bytes: int = 255
    """Of one component of a path."""
    depth: int = 1024
    header_bytes: int = 1024 * 1024
    """Of all headers of one entry; they are held in memory."""
    remembered_bytes: int = 1024 * 1024 * 1024
    """Of the directories whose modes and times can be set only when all is in them, and of the first names of files
    that have several; about 300 bytes for each, and its path."""


DEFAULT_LIMITS = ArchiveLimits()
