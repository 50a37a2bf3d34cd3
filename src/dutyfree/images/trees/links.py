"""Hard links: bounds the memory for the names of hard-linked files, and the walking to find their first names."""

from __future__ import annotations

from typing import Final

_OVERHEAD_BYTES: Final = 300
_FREE_MOVES: Final = 200_000
_MOVES_PER_ENTRY: Final = 64


class FirstNames:
    """The first path of each hard-linked file, by the file's identity, in bounded memory."""

    def __init__(self, most_bytes: int) -> None:
        self._left_bytes = most_bytes
        self._paths: dict[tuple[int, ...], bytes] = {}

    def find(self, file: tuple[int, ...]) -> bytes | None:
        """The first path of the file; None if it is not remembered."""
        return self._paths.get(file)

    def remember(self, file: tuple[int, ...], path: bytes) -> bool:
        """Remember the file's first path; returns False if the memory is full."""
        needed_bytes = len(path) + _OVERHEAD_BYTES
        if needed_bytes > self._left_bytes:
            return False
        self._left_bytes -= needed_bytes
        self._paths[file] = path
        return True


def allowed_moves(entries: int) -> int:
    """The number of directories that may be entered and left for this number of entries.

    Ordinary trees and archives need a few moves per entry. A hostile archive with names that alternate between deep
    branches needs thousands per entry, and a small archive can have millions of such entries.
    """
    return _FREE_MOVES + _MOVES_PER_ENTRY * entries
