"""Ranges of user ids, of which no two cells of this machine have the same.

The kernel counts many things for each user: watches of epoll, descriptors on their way through sockets, pages of pipes.
With a range of its own, a cell cannot use up what another cell needs. On disk all files belong to one range
(`Setting.root_id`); mounts translate.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path

from dutyfree import fork_safety
from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS

RANGES = 0x0FFE
"""With the one that files belong to, which is number 0. The ids behind them are systemd's, for files of other machines,
and the kernel takes ids from 2^31 on for negative numbers in places."""
KEPT_IDLE = 256
"""How many free ranges are kept for the next cells: for these the spawner has a user namespace ready."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """`SUBORDINATE_COUNT` ids of the host. Number 0 is shared by cells that cannot have one of their own."""

    number: int = 0

    @property
    def first(self) -> int:
        """What stands for a cell's root."""
        return SUBORDINATE_IDS + self.number * SUBORDINATE_COUNT

    @property
    def account(self) -> int:
        """The user that makes the cell's user namespace, and that the kernel charges for what is counted there."""
        return self.first + SUBORDINATE_COUNT - 1


SHARED = IdRange()


class IdRanges:
    """Those that this process has taken. A range is taken by a lock on one byte of a file that the machine shares."""

    def __init__(self, file: Path) -> None:
        """Raises OSError."""
        self.lock_fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fork_safety.keep_from_children(self.lock_fd)
        self._idle: list[int] = []
        self._held: set[int] = set()
        """Idle or not; the kernel sees no conflict between two locks of one open file."""
        self._next = random.randrange(1, RANGES)  # processes seldom meet

    def take(self) -> IdRange | None:
        """One that no other cell of this machine has; None if all are taken."""
        if self._idle:
            return IdRange(self._idle.pop())
        for _ in range(1, RANGES):
            number, self._next = self._next, self._next % (RANGES - 1) + 1
            if number not in self._held and self._lock(number, fcntl.F_WRLCK):
                self._held.add(number)
                return IdRange(number)
        return None

    def give_back(self, taken: IdRange) -> None:
        """Its cell is gone."""
        if len(self._idle) < KEPT_IDLE:
            self._idle.append(taken.number)
        else:
            self._lock(taken.number, fcntl.F_UNLCK)
            self._held.discard(taken.number)

    def _lock(self, number: int, kind: int) -> bool:
        """These locks belong to the open file, not to a process: the spawner, which inherits it, keeps them, too."""
        region = struct.pack("hhqqi0q", kind, os.SEEK_SET, number, 1, 0)
        try:
            fcntl.fcntl(self.lock_fd, fcntl.F_OFD_SETLK, region)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give all of them back."""
        fork_safety.close(self.lock_fd)
