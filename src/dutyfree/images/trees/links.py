"""Files with several names, on the way through a tree: how much is remembered, and how far one goes for them."""

from __future__ import annotations

from typing import Final

_OVERHEAD_BYTES: Final = 300
_FREE_MOVES: Final = 200_000
_MOVES_PER_ENTRY: Final = 64


class FirstNames:
    """Where files were met first, by whatever tells them apart; in bounded memory, however long their paths are."""

    def __init__(self, most_bytes: int) -> None:
        self._left_bytes = most_bytes
        self._paths: dict[tuple[int, ...], bytes] = {}

    def find(self, file: tuple[int, ...]) -> bytes | None:
        """The path that was remembered."""
        return self._paths.get(file)

    def remember(self, file: tuple[int, ...], path: bytes) -> bool:
        """Whether there was room for it."""
        needed_bytes = len(path) + _OVERHEAD_BYTES
        if needed_bytes > self._left_bytes:
            return False
        self._left_bytes -= needed_bytes
        self._paths[file] = path
        return True


def allowed_moves(entries: int) -> int:
    """How many directories may be entered and left for so many entries.

    Honest trees and archives need a few for each. Names that lie alternately at the ends of deep branches need
    thousands, and a small archive has millions of them.
    """
    return _FREE_MOVES + _MOVES_PER_ENTRY * entries
