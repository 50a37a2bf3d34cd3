"""File locks, which the kernel frees when their process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dutyfree import fork_safety
from dutyfree.errors import CapacityError
from dutyfree.values import dataclass

BUSY_S = 60.0
"""The longest wait for a lock that other processes hold only for short times."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


@dataclass(frozen=True, slots=True)
class FileLock:
    """An exclusive lock, held from its creation on."""

    path: Path
    fd: int

    def release(self, *, remove: bool = False) -> None:
        """Release the lock; `remove` also removes its file, which only the holder may do."""
        if remove:
            self.path.unlink(missing_ok=True)
        free(self.fd)


def attempt(path: Path) -> FileLock | None:
    """Take the lock `path`, and make its file if it is missing; None if another holder has the lock."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        # The previous holder may have removed the file after we opened it; then our lock is on a deleted file.
        if is_at(path, fd):
            fork_safety.keep_from_children(fd)
            return FileLock(path, fd)
        free(fd)


def attempt_directory(path: Path) -> FileLock | None:
    """Take a lock on a directory itself, without making a file; None if another holder has the lock."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return FileLock(path, fd)


@contextlib.contextmanager
def sharing_directory(path: Path) -> Iterator[None]:
    """Share the lock on a directory: other processes may share it, too, but not take it exclusively."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)  # blocks only for a short time: exclusive holders release it soon
        yield
    finally:
        free(fd)


@contextlib.contextmanager
def waiting(path: Path, timeout_s: float = BUSY_S, what: str = "the image store") -> Iterator[None]:
    """Hold the lock `path` within the block. Raises CapacityError if others hold it for longer than `timeout_s`."""
    lock = wait(path, timeout_s, what)
    try:
        yield
    finally:
        lock.release()


def wait(path: Path, timeout_s: float, what: str) -> FileLock:
    """Take the lock `path`. Raises CapacityError if others hold it for longer than `timeout_s`."""
    for _ in pauses(timeout_s):
        lock = attempt(path)
        if lock is not None:
            return lock
    raise CapacityError(f"{what} was busy for {timeout_s:g} s", hint="another process uses it; try again later")


def pauses(timeout_s: float) -> Iterator[None]:
    """Yield at growing intervals until `timeout_s` is over; at least once."""
    end, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while True:
        yield
        left_s = end - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def free(fd: int) -> None:
    """Release a lock, even if a forked child still has the file open."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    fork_safety.close(fd)


def is_at(path: Path, fd: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False
