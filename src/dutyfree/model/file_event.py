"""What is seen of a directory that is watched."""

from __future__ import annotations

from enum import StrEnum

from dutyfree.values import dataclass


class FileEventKind(StrEnum):
    """What has happened."""

    CREATED = "created"
    """It is there now. What appears while a new directory is looked into for the first time may be said twice."""
    CHANGED = "changed"
    """Its content was written to, or cut."""
    REMOVED = "removed"
    """It is gone, or was moved out of what is watched."""
    MOVED = "moved"
    """It has another name within what is watched."""
    ATTRIBUTES = "attributes"
    """Its mode, owner, times or number of links have changed."""
    OVERFLOW = "overflow"
    """Events were lost, or there are more directories than are watched: look again at what you need."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One change."""

    kind: FileEventKind
    path: str
    """Absolute; for OVERFLOW, the directory that is watched."""
    is_directory: bool = False
    moved_from: str | None = None
    """The former path, of what was moved."""
