"""What a sandbox takes of its machine."""

from __future__ import annotations

from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox takes at one moment, the kernel's own memory for it included where that is counted."""

    memory_bytes: int
    """Files that it keeps in memory included."""
    disk_bytes: int = 0
    """0 where disk space is not measured."""
