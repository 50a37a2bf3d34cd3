"""Staging directories for unfinished work, and garbage. Both are removed even if their process is killed.

Each staging directory has a lock file beside it. Its process takes the lock before it makes the directory and releases
it after removing the directory. So a process that gets the lock knows that the directory is abandoned. `sweep` may also
remove a lock file that was made but not yet locked; its process then notices that and makes another one. This needs
neither a lock on the whole store nor a guess from the age of files.

Garbage, which was taken out of the store, has no lock file, because a prune must work on a full disk. A process that
removes garbage shares a lock on the area itself, so that other processes know that the removal is under way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.images.store import locks
from dutyfree.images.store.layout import wrap_full_disk
from dutyfree.removal import remove_tree

_LOCK = ".lock"
_GARBAGE = "removed-"


@contextlib.contextmanager
def staged(area: Path) -> Iterator[Path]:
    """Make an empty directory in `area`, and remove it at the end. A full disk within the block is a CapacityError."""
    with wrap_full_disk():
        lock, directory = _make_locked(area)
        try:
            yield directory
        finally:
            _remove(lock, directory)


@contextlib.contextmanager
def trash(area: Path) -> Iterator[list[Path]]:
    """A list for paths from `garbage_path(area)`; they are removed at the end or by the next sweep. Makes no file."""
    with locks.sharing_directory(area):
        garbage: list[Path] = []
        try:
            yield garbage
        finally:
            _remove_garbage(garbage)


def garbage_path(area: Path) -> Path:
    """A new path to which garbage can be moved by one rename."""
    return area / f"{_GARBAGE}{os.urandom(8).hex()}"


def sweep(area: Path) -> None:
    """Remove what dead processes left in `area`; what cannot be removed stays for the next sweep."""
    for directory, lock in _abandoned(area):
        _remove(lock, directory)
    if _abandoned_garbage(area):
        with locks.sharing_directory(area):
            _remove_garbage(_garbage(area))


def leftovers(area: Path) -> list[Path]:
    """The paths that a sweep would remove."""
    found = []
    for directory, lock in _abandoned(area):
        if directory.exists():
            found.append(directory)
        lock.release()
    return found + _abandoned_garbage(area)


def sweep_locks(area: Path) -> None:
    """Remove the lock files of dead processes from a directory that has only lock files."""
    for path in list(area.iterdir()):
        lock = locks.attempt(path)
        if lock is not None:
            lock.release(remove=True)


def _make_locked(area: Path) -> tuple[locks.FileLock, Path]:
    while True:
        directory = area / f"{os.getpid()}-{os.urandom(8).hex()}"
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
    """Garbage that no process is removing now."""
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
