"""Directories for what is being made or thrown away, which do not outlive who made them.

Each has a lock beside it, not in it: it is taken before the directory is made and let go after it was removed, so that
whoever gets the lock knows that nobody is at work there. A lock just born, and not yet taken, may be swept away as
well; its maker notices that and makes another one. No lock for the whole store is needed, and no guess about ages.

What was taken out of the store lies there without a lock: making room must be possible where there is none for a file.
Who removes it shares a lock on the area itself, so that others know that somebody is at it; it is garbage to everyone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.images.store import locks
from dutyfree.images.store.layout import wrap_disk_full
from dutyfree.removal import remove_tree

_LOCK = ".lock"
_GARBAGE = "removed-"


@contextlib.contextmanager
def staged(area: Path) -> Iterator[Path]:
    """An empty directory in `area`, removed at the end. Raises CapacityError for a disk that is full inside."""
    with wrap_disk_full():
        lock, directory = _born(area)
        try:
            yield directory
        finally:
            _remove(lock, directory)


@contextlib.contextmanager
def trash(area: Path) -> Iterator[list[Path]]:
    """A list of what was moved to `garbage_path(area)`, removed at the end, or by the next sweep. Makes no file."""
    with locks.sharing_directory(area):
        garbage: list[Path] = []
        try:
            yield garbage
        finally:
            _remove_garbage(garbage)


def garbage_path(area: Path) -> Path:
    """Where to move what is to be thrown away, in one rename."""
    return area / f"{_GARBAGE}{secrets.token_hex(8)}"


def sweep(area: Path) -> None:
    """Remove what dead processes left in `area`; what cannot be removed is left to who comes next."""
    for directory, lock in _abandoned(area):
        _remove(lock, directory)
    if _abandoned_garbage(area):
        with locks.sharing_directory(area):
            _remove_garbage(_garbage(area))


def leftovers(area: Path) -> list[Path]:
    """What a sweep would remove."""
    found = []
    for directory, lock in _abandoned(area):
        if directory.exists():
            found.append(directory)
        lock.release()
    return found + _abandoned_garbage(area)


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
            try:
                directory.mkdir(mode=0o700)
            except OSError:
                lock.release(remove=True)
                raise
            return lock, directory


def _abandoned(area: Path) -> Iterator[tuple[Path, locks.FileLock]]:
    names = {path.name.removesuffix(_LOCK) for path in area.iterdir() if not path.name.startswith(_GARBAGE)}
    for name in sorted(names):
        lock = locks.attempt(area / (name + _LOCK))
        if lock is not None:
            yield area / name, lock


def _abandoned_garbage(area: Path) -> list[Path]:
    """What nobody is removing at this moment."""
    if not _garbage(area):
        return []
    lock = locks.attempt_directory(area)
    if lock is None:
        return []
    try:
        return _garbage(area)
    finally:
        lock.release()


def _garbage(area: Path) -> list[Path]:
    return sorted(path for path in area.iterdir() if path.name.startswith(_GARBAGE))


def _remove_garbage(garbage: list[Path]) -> None:
    for path in garbage:
        with contextlib.suppress(SubstrateFailed):
            remove_tree(path)


def _remove(lock: locks.FileLock, directory: Path) -> None:
    try:
        remove_tree(directory)
    except SubstrateFailed:
        lock.release()
    else:
        lock.release(remove=True)
