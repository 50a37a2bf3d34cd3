"""The metadata of a file in a sandbox."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from dutyfree.values import dataclass

MAX_MODE: Final = 0o7777
"""All permission bits."""


class FileKind(StrEnum):
    """The type of a directory entry."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry, symlinks not followed."""

    name: str
    kind: FileKind
    mode: int
    size_bytes: int
    mtime_ns: int
    uid: int
    gid: int
    link_target: str | None = None
