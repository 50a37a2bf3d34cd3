"""One reader of a tree at a time, where reading changes it for a while."""

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

PATIENCE_S: Final = 1800.0
_PAUSE_S: Final = 0.02


@contextlib.contextmanager
def alone(trees: Sequence[Path], on_bytes: Callable[[int], None] | None = None) -> Iterator[None]:
    """Keep other readers out of `trees`: an ordinary user's own, with the modes that they `grant`, see wrong ones.

    Root grants itself nothing and waits for nobody. `on_bytes` hears of 0 bytes while this waits; what it raises ends
    that. Raises OSError, CapacityError when others do not come to an end. File systems without locks go without.
    """
    with contextlib.ExitStack() as stack:
        if os.geteuid() != 0:
            roots: dict[tuple[int, int], int] = {}
            for tree in trees:
                fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                info = os.fstat(fd)
                roots.setdefault((info.st_dev, info.st_ino), fd)
            # In one order for all, so that no two wait for each other.
            for _identity, fd in sorted(roots.items()):
                _lock(fd, on_bytes)
        yield


def _lock(fd: int, on_bytes: Callable[[int], None] | None) -> None:
    end_s = time.monotonic() + PATIENCE_S
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
            raise CapacityError(f"a layer was in use for {PATIENCE_S:g} s", hint=hint)
        if on_bytes is not None:
            on_bytes(0)
        time.sleep(_PAUSE_S)
