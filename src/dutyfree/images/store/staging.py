"""Directories for what is being made or thrown away, which do not outlive who made them.

Each has a lock beside it, not in it: it is taken before the directory is made and let go after it was removed, so that
whoever gets the lock knows that nobody is at work there. A lock just born, and not yet taken, may be swept away as
well; its maker notices that and makes another one. No lock for the whole store is needed, and no guess about ages.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.images.store import locks
from dutyfree.images.store.layout import full_disk_told
from dutyfree.removal import remove_tree

_LOCK = ".lock"


@contextlib.contextmanager
def staged(area: Path) -> Iterator[Path]:
    """An empty directory in `area`, removed at the end. Raises CapacityError for a disk that is full inside."""
    with full_disk_told():
        lock, directory = _born(area)
        try:
            yield directory
        finally:
            _remove(lock, directory)


def sweep(area: Path) -> None:
    """Remove what dead processes left in `area`; what cannot be removed is left to who comes next."""
    for directory, lock in _abandoned(area):
        _remove(lock, directory)


def leftovers(area: Path) -> list[Path]:
    """What a sweep would remove."""
    found = []
    for directory, lock in _abandoned(area):
        if directory.exists():
            found.append(directory)
        lock.release()
    return found


def sweep_locks(area: Path) -> None:
    """Remove the locks of dead processes from a directory of nothing but locks."""
    for path in list(area.iterdir()):
        lock = locks.attempt(path)
        if lock is not None:
            lock.release(remove=True)


def _born(area: Path) -> tuple[locks.FileLock, Path]:
    while True:
        directory = area / f"{os.getpid()}-{secrets.token_hex(8)}"
        lock = locks.attempt(area / (directory.name + _LOCK))
        if lock is not None:
            directory.mkdir(mode=0o700)
            return lock, directory


def _abandoned(area: Path) -> Iterator[tuple[Path, locks.FileLock]]:
    for name in sorted({path.name.removesuffix(_LOCK) for path in area.iterdir()}):
        lock = locks.attempt(area / (name + _LOCK))
        if lock is not None:
            yield area / name, lock


def _remove(lock: locks.FileLock, directory: Path) -> None:
    try:
        remove_tree(directory)
    except SubstrateFailed:
        lock.release()
    else:
        lock.release(remove=True)
