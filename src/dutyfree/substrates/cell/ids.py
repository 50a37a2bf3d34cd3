"""Ranges of user ids: each cell of this machine gets its own.

The kernel counts many resources per user: epoll watches, descriptors in transit through sockets, pages of pipes. With
its own range of ids, a cell cannot use up what another cell needs. On disk, all files belong to one range
(`Setting.root_id`); id-mapped mounts translate.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from dutyfree import fork_safety
from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS
from dutyfree.values import dataclass

RANGES = 0x0FFE
"""The number of ranges, including number 0, which files belong to. Higher ids are not usable: systemd reserves the next
ones for foreign files, and some parts of the kernel treat ids from 2^31 on as negative numbers."""
KEPT_IDLE = 256
"""How many free ranges this process keeps for its next cells: the spawner still has user namespaces for them."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """`SUBORDINATE_COUNT` ids of the host. Cells that cannot have their own range share number 0."""

    number: int = 0

    @property
    def first(self) -> int:
        """The host's id for the cell's root."""
        return SUBORDINATE_IDS + self.number * SUBORDINATE_COUNT

    @property
    def account(self) -> int:
        """The user that makes the cell's user namespace. The kernel charges this user for what it counts there."""
        return self.first + SUBORDINATE_COUNT - 1


SHARED = IdRange()


class IdRanges:
    """The ranges of this process. Each is reserved by a lock on one byte of a file that all processes share."""

    def __init__(self, file: Path) -> None:
        """Raises OSError."""
        self.lock_fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fork_safety.keep_from_children(self.lock_fd)
        self._idle: list[int] = []
        self._held: set[int] = set()
        """All ranges of this process, idle or not. Needed because two locks of one open file do not conflict."""
        # Random, so that processes seldom try the same range. (The module `random` is slow to import.)
        self._next = 1 + int.from_bytes(os.urandom(8)) % (RANGES - 1)

    def take(self) -> IdRange | None:
        """A range that no other cell of this machine has; None if all are taken."""
        if self._idle:
            return IdRange(self._idle.pop())
        for _ in range(1, RANGES):
            number, self._next = self._next, self._next % (RANGES - 1) + 1
            if number not in self._held and self._lock(number, fcntl.F_WRLCK):
                self._held.add(number)
                return IdRange(number)
        return None

    def give_back(self, taken: IdRange) -> None:
        """Return a range whose cell is gone."""
        if len(self._idle) < KEPT_IDLE:
            self._idle.append(taken.number)
        else:
            self._lock(taken.number, fcntl.F_UNLCK)
            self._held.discard(taken.number)

    def _lock(self, number: int, kind: int) -> bool:
        """Lock or unlock a range. Locks belong to the open file, so the spawner, which inherits it, holds them too."""
        region = struct.pack("hhqqi0q", kind, os.SEEK_SET, number, 1, 0)
        try:
            fcntl.fcntl(self.lock_fd, fcntl.F_OFD_SETLK, region)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Return all ranges."""
        fork_safety.close(self.lock_fd)
