"""The memory and disk space of sandboxes."""

from __future__ import annotations

from typing import Final

from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """The memory and disk space that one or several sandboxes take."""

    memory_bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.memory_bytes + other.memory_bytes, self.disk_bytes + other.disk_bytes)

    def __sub__(self, other: Size) -> Size:
        return Size(self.memory_bytes - other.memory_bytes, self.disk_bytes - other.disk_bytes)

    def __mul__(self, count: int) -> Size:
        return Size(self.memory_bytes * count, self.disk_bytes * count)


NO_SIZE: Final = Size()
