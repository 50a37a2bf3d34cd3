"""Walks a tree of files that hostile programs may have made, by directory descriptors and never through a symlink.

The kernel resolves single names only, never paths, so neither a symlink nor a concurrent rename can lead out of the
tree. Nothing recurses and few descriptors stay open, so deep trees are no problem.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from dutyfree.archive.limits import MAX_ENTRIES
from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.formatting import quoted
from dutyfree.values import dataclass

MAX_DEPTH: Final = 4096
MAX_PATH_BYTES: Final = 64 * 1024
"""More than PATH_MAX: programs can make longer paths with relative names."""
_OPEN_MOST: Final = 64
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Step:
    name: bytes
    fd: int
    """-1 while it is closed to save descriptors."""
    identity: tuple[int, int]
    mode_to_restore: int | None


class Descent:
    """A position in a tree, and its parents up to the root. At most `open_most` of these directories are open."""

    def __init__(self, root_fd: int, open_most: int = _OPEN_MOST) -> None:
        """Takes ownership of `root_fd`, an open directory."""
        self._open_most = max(open_most, 2)
        self._closed = 0
        """The number of closed directories at the top."""
        self.moves = 0
        """The number of directories entered and left so far."""
        self._steps = [_Step(b"", root_fd, _identity(os.fstat(root_fd)), None)]

    @classmethod
    def at(cls, root: Path, open_most: int = _OPEN_MOST) -> Self:
        """Start at a directory. Raises OSError, also for a symlink to a directory."""
        return cls(os.open(root, _DIRECTORY), open_most)

    @property
    def fd(self) -> int:
        """The descriptor of the current directory."""
        return self._steps[-1].fd

    def enter(self, name: bytes) -> None:
        """Enter a directory. Raises OSError if it is not a directory."""
        fd = _open_directory(name, self.fd)
        try:
            info = os.fstat(fd)
            restore = grant(fd, info, stat.S_IRUSR | stat.S_IXUSR)
        except BaseException:
            os.close(fd)
            raise
        self.moves += 1
        self._steps.append(_Step(name, fd, _identity(info), restore))
        if len(self._steps) - self._closed > self._open_most:
            highest = self._steps[self._closed]
            fd, highest.fd = highest.fd, -1
            self._closed += 1
            os.close(fd)

    def leave(self) -> None:
        """Go to the parent. Raises OSError, and SubstrateFailed if the directory was moved; the position then stays.

        Also raises OSError if the directory's mode cannot be restored; the position then is the parent.
        """
        self._reach_parent()
        self._drop()

    def go(self, names: Sequence[bytes]) -> None:
        """Go to the directory with this path from the root. Raises OSError, SubstrateFailed."""
        for name in self.approach(names):
            self.enter(name)

    def approach(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """Go up to the common parent with the path `names`; returns the names that are still to be entered."""
        shared = 0
        for step, name in zip(self._steps[1:], names, strict=False):
            if step.name != name:
                break
            shared += 1
        while len(self._steps) - 1 > shared:
            self.leave()
        return names[shared:]

    def close(self) -> None:
        """Close all descriptors, and restore the modes of all directories that can still be reached."""
        while self._steps:
            try:
                self._reach_parent()
            except (OSError, SubstrateFailed):
                # The parent is closed, so all directories above it are closed, too: only this step is left to close.
                del self._steps[:-1]
            with contextlib.suppress(OSError):
                self._drop()

    def _reach_parent(self) -> None:
        """Open the parent if it is closed, and check that it is the directory from which this one was entered."""
        if not 0 < self._closed == len(self._steps) - 1:
            return
        above = self._steps[-2]
        fd = _open_parent(self.fd)
        if _identity(os.fstat(fd)) != above.identity:
            os.close(fd)
            raise SubstrateFailed(f"directory {quoted(above.name)} was moved while it was read")
        above.fd = fd
        self._closed -= 1

    def _drop(self) -> None:
        self.moves += 1
        step = self._steps.pop()
        try:
            if step.mode_to_restore is not None:
                os.fchmod(step.fd, step.mode_to_restore)
        finally:
            os.close(step.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Visit:
    """One file or directory of a walk; a walk visits directories twice."""

    path: bytes
    """The path from the root of the walk; empty for the root."""
    name: bytes
    info: os.stat_result
    leaving: bool = False


def walk(descent: Descent) -> Iterator[Visit]:
    """Visit the current directory and everything below it, sorted by name as bytes.

    At the first visit of a directory the descent is in that directory. At its second visit, and at visits of files, the
    descent is in the parent. Raises OSError, InvalidRequest past the limits, SubstrateFailed if the tree changes.
    """
    info = os.fstat(descent.fd)
    yield Visit(b"", b"", info)
    names = _names(descent.fd, MAX_ENTRIES)
    left_entries = MAX_ENTRIES - len(names)
    # Keeps names only: the size of full paths would grow with the square of the depth.
    levels = [(b"", info, iter(names))]
    here = b""
    while levels:
        own_name, own_info, left_names = levels[-1]
        name = next(left_names, None)
        if name is None:
            levels.pop()
            if levels:
                descent.leave()
            yield Visit(here, own_name, own_info, leaving=True)
            here = here[: -len(own_name)].removesuffix(b"/")
            continue
        path = path_below(here, name)
        info = os.stat(name, dir_fd=descent.fd, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            yield Visit(path, name, info)
            continue
        if len(levels) > MAX_DEPTH:
            raise InvalidRequest(f"more than {MAX_DEPTH} nested directories, at {quoted(path)}")
        descent.enter(name)
        yield Visit(path, name, info)
        names = _names(descent.fd, left_entries)
        left_entries -= len(names)
        levels.append((name, info, iter(names)))
        here = path


def path_below(directory: bytes, name: bytes) -> bytes:
    """The path of `name` in a directory. Raises InvalidRequest if it is too long."""
    path = directory + b"/" + name if directory else name
    if len(path) > MAX_PATH_BYTES:
        raise InvalidRequest(f"a path of more than {MAX_PATH_BYTES} bytes, at {quoted(path)}")
    return path


def remove_below(parent_fd: int, name: bytes) -> Iterator[bytes]:
    """Remove a directory and its content; yields the paths of the removed directories, from `name` on."""
    with Descent(_open_directory(name, parent_fd)) as descent:
        for visit in walk(descent):
            if not visit.leaving and not stat.S_ISDIR(visit.info.st_mode):
                os.unlink(visit.name, dir_fd=descent.fd)
            elif visit.leaving and visit.path:
                os.rmdir(visit.name, dir_fd=descent.fd)
                yield visit.path
    os.rmdir(name, dir_fd=parent_fd)
    yield b""


def sorted_names(directory_fd: int) -> list[bytes]:
    """The names in a directory, as sorted bytes. Raises OSError, InvalidRequest past the limit."""
    return _names(directory_fd, MAX_ENTRIES)


def _names(directory_fd: int, most: int) -> list[bytes]:
    names: list[bytes] = []
    with os.scandir(directory_fd) as found:
        for entry in found:
            if len(names) >= most:
                raise InvalidRequest(f"a tree of more than {MAX_ENTRIES} files and directories")
            names.append(os.fsencode(entry.name))
    names.sort()
    return names


def _open_directory(name: bytes, parent_fd: int) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except PermissionError:
        return open_own(name, parent_fd, os.O_RDONLY | os.O_DIRECTORY)


def _open_parent(fd: int) -> int:
    restore = grant(fd, os.fstat(fd), stat.S_IXUSR)
    try:
        return os.open("..", _DIRECTORY, dir_fd=fd)
    finally:
        if restore is not None:
            os.fchmod(fd, restore)


def open_file(visit: Visit, descent: Descent) -> int:
    """Open a visited regular file for reading. Raises OSError, SubstrateFailed if it was replaced."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(visit.name, flags, dir_fd=descent.fd)
    except PermissionError:
        fd = open_own(visit.name, descent.fd, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if _identity(os.fstat(fd)) != _identity(visit.info):
        os.close(fd)
        raise SubstrateFailed(f"{quoted(visit.path)} was replaced while it was read")
    return fd


def open_own(name: bytes, parent_fd: int, flags: int) -> int:
    """Open a file or directory of this user whose mode denies reading: layers of an ordinary user have such files.

    Raises PermissionError for a file of another user. Restores the mode before it returns.
    """
    anchor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        info = os.fstat(anchor)
        if stat.S_ISLNK(info.st_mode):
            raise PermissionError(f"{quoted(name)} became a link")
        mode = stat.S_IMODE(info.st_mode)
        exactly_this = f"/proc/self/fd/{anchor}"
        os.chmod(exactly_this, mode | stat.S_IRUSR)  # noqa: PTH101
        try:
            return os.open(exactly_this, flags | os.O_CLOEXEC)
        finally:
            os.chmod(exactly_this, mode)  # noqa: PTH101
    finally:
        os.close(anchor)


def grant(fd: int, info: os.stat_result, rights: int) -> int | None:
    """Add `rights` to the mode of an open file or directory of this user; returns the old mode if it changed.

    An open descriptor alone does not allow looking up names in a directory or reading user attributes.
    """
    mode = stat.S_IMODE(info.st_mode)
    if mode & rights == rights or os.geteuid() == 0 or info.st_uid != os.geteuid():
        return None
    os.fchmod(fd, mode | rights)
    return mode


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino
