"""Locks trees against other readers, because an ordinary user's reader temporarily changes modes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError

MAX_WAIT_S: Final = 1800.0
_PAUSE_S: Final = 0.02


@contextlib.contextmanager
def alone(trees: Sequence[Path], on_bytes: Callable[[int], None] | None = None) -> Iterator[None]:
    """Lock `trees` against other readers. An ordinary user's reader changes modes for a time (see `grant`), and a
    concurrent reader would see the changed modes.

    Root changes no modes and takes no lock. While this waits, it calls `on_bytes(0)`, which may raise to stop. Raises
    OSError, and CapacityError after `MAX_WAIT_S`. On file systems without locks this does nothing.
    """
    with contextlib.ExitStack() as stack:
        if os.geteuid() != 0:
            roots: dict[tuple[int, int], int] = {}
            for tree in trees:
                fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                info = os.fstat(fd)
                roots.setdefault((info.st_dev, info.st_ino), fd)
            # All readers lock in the same order, which prevents a deadlock.
            for _identity, fd in sorted(roots.items()):
                _lock(fd, on_bytes)
        yield


def _lock(fd: int, on_bytes: Callable[[int], None] | None) -> None:
    end_s = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                return
        else:
            return
        if time.monotonic() > end_s:
            hint = "another process reads the same layer, or holds a lock on its directory; try again later"
            raise CapacityError(f"a layer was in use for {MAX_WAIT_S:g} s", hint=hint)
        if on_bytes is not None:
            on_bytes(0)
        time.sleep(_PAUSE_S)
