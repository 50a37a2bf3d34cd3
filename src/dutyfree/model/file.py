"""What a sandbox says of one of its files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FileKind(StrEnum):
    """The kinds of thing that a directory can hold."""

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
