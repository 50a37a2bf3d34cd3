"""Copies single files and directories into a new tree, with their metadata."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final

from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.formatting import quoted
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees.attributes import is_whiteout, kept_xattrs, make_opaque, make_whiteout
from dutyfree.images.trees.descent import Descent, Visit, open_file
from dutyfree.images.trees.holes import stretches
from dutyfree.images.trees.links import FirstNames, allowed_moves

FIRST_NAMES_BYTES: Final = 256 * 1024 * 1024
"""Memory for paths of hard-linked files. When it is full, each further name of such a file gets its own copy."""
_PIECE_BYTES: Final = 8 * 1024 * 1024
"""The size of one copy step; between steps `on_bytes` can stop the work."""
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors of a hard link after which a copy is made instead.
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP})
_NO_RANGE: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})

Inode = tuple[int, int]


class Copying:
    """A tree that is being written. `target` is the current directory in it."""

    def __init__(
        self,
        target: Descent,
        links: Descent,
        ownership: Ownership,
        *,
        link: bool,
        plain: bool = False,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._target = target
        self._links = links
        """A second position in the new tree, to find the first name of a hard-linked file."""
        self._ownership = ownership
        self._link = link
        self._plain = plain
        self._on_bytes = on_bytes
        self._first_names = FirstNames(FIRST_NAMES_BYTES)
        self._entries = 0
        self._linked: dict[Inode, int] = {}

    def begin_directory(self, name: bytes, source_fd: int, *, opaque: bool) -> None:
        """Make and enter a directory; `end_directory` ends it. Without a name, the directory is the tree's root."""
        self._count(0)
        if name:
            os.mkdir(name, 0o700, dir_fd=self._target.fd)
            self._target.enter(name)
        for key, value in self._xattrs(source_fd).items():
            os.setxattr(self._target.fd, key, value)
        if opaque:
            make_opaque(self._target.fd, self._ownership)

    def end_directory(self, info: os.stat_result) -> None:
        """Leave the directory, and set its mode and times, which writing into it would change."""
        self._set_metadata(self._target.fd, info)
        self._target.leave()

    def put(self, visit: Visit, source: Descent, tree: int) -> None:
        """Copy a file of any kind but a directory. `tree` is the number of its tree: hard links count per tree."""
        name, mode, target_fd = visit.name, visit.info.st_mode, self._target.fd
        self._entries += 1
        self._count(0)
        if is_whiteout(visit.info):
            make_whiteout(name, target_fd, self._ownership)
        elif stat.S_ISREG(mode):
            self._put_file(visit, source, tree)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source.fd), name, dir_fd=target_fd)
            self._set_metadata_by_name(name, visit.info)
        else:
            os.mkfifo(name, 0o600, dir_fd=target_fd)
            os.chmod(name, stat.S_IMODE(mode), dir_fd=target_fd)
            self._set_metadata_by_name(name, visit.info)

    def _put_file(self, visit: Visit, source: Descent, tree: int) -> None:
        inode = (visit.info.st_dev, visit.info.st_ino)
        if self._link and self._put_link(visit, source, tree, inode):
            self._count(visit.info.st_size)
            return
        first = self._first_names.find((tree, *inode))
        if first is not None and self._links.moves <= allowed_moves(self._entries):
            *parents, first_name = first.split(b"/")
            self._links.go(parents)
            os.link(
                first_name,
                visit.name,
                src_dir_fd=self._links.fd,
                dst_dir_fd=self._target.fd,
                follow_symlinks=False,
            )
            return
        if visit.info.st_nlink > 1 and first is None:
            self._first_names.remember((tree, *inode), visit.path)
        self._copy_file(visit, source)

    def _put_link(self, visit: Visit, source: Descent, tree: int, inode: Inode) -> bool:
        """Make a hard link to the source file. If two trees share an inode, the result keeps them as two files."""
        if visit.info.st_nlink > 1 and self._linked.setdefault(inode, tree) != tree:
            return False
        try:
            os.link(visit.name, visit.name, src_dir_fd=source.fd, dst_dir_fd=self._target.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        info = os.stat(visit.name, dir_fd=self._target.fd, follow_symlinks=False)
        if (info.st_dev, info.st_ino) != inode:
            raise SubstrateFailed(f"{quoted(visit.path)} was replaced while it was read")
        return True

    def _copy_file(self, visit: Visit, source: Descent) -> None:
        source_fd = open_file(visit, source)
        try:
            target_fd = os.open(visit.name, _NEW_FILE, 0o600, dir_fd=self._target.fd)
            try:
                self._copy_content(source_fd, target_fd, visit)
                self._set_metadata(target_fd, visit.info, self._xattrs(source_fd))
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def _copy_content(self, source_fd: int, target_fd: int, visit: Visit) -> None:
        size = visit.info.st_size
        if visit.info.st_blocks * 512 < size:
            _lengthen(target_fd, size, visit)  # before the data: a disk that refuses the size also refuses its offsets
        for start, end in stretches(source_fd, visit.info):
            while start < end:
                copied = _copy_piece(source_fd, target_fd, start, min(end - start, _PIECE_BYTES))
                if not copied:
                    raise SubstrateFailed(f"{quoted(visit.path)} became shorter while it was read")
                start += copied
                self._count(copied)

    def _set_metadata(self, fd: int, info: os.stat_result, xattrs: dict[str, bytes] | None = None) -> None:
        """Set owner, attributes, mode and times, in this order: chown clears capabilities and set-id bits, and a
        read-only mode denies user attributes."""
        if self._ownership.shift is not None:
            os.fchown(fd, info.st_uid, info.st_gid)
        for key, value in (xattrs or {}).items():
            os.setxattr(fd, key, value)
        os.fchmod(fd, self._mode(info))
        os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _xattrs(self, source_fd: int) -> dict[str, bytes]:
        found = kept_xattrs(source_fd, self._ownership)  # also of a plain copy: this refuses an incomplete file
        return {} if self._plain else found

    def _mode(self, info: os.stat_result) -> int:
        mode = stat.S_IMODE(info.st_mode)
        if not self._plain:
            return mode
        return (mode & 0o777) | (0o700 if stat.S_ISDIR(info.st_mode) else 0o600)

    def _set_metadata_by_name(self, name: bytes, info: os.stat_result) -> None:
        fd = self._target.fd
        if self._ownership.shift is not None:
            os.chown(name, info.st_uid, info.st_gid, dir_fd=fd, follow_symlinks=False)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=fd, follow_symlinks=False)

    def _count(self, size_bytes: int) -> None:
        """Call `on_bytes`, even with 0 bytes, since it may raise to stop the work."""
        if self._on_bytes is not None:
            self._on_bytes(size_bytes)


def _lengthen(fd: int, size: int, visit: Visit) -> None:
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        message = f"{quoted(visit.path)} has {size} bytes, which is more than a file on the disk for layers can have"
        raise InvalidRequest(message, hint="remove the file, or make it shorter") from error


def _copy_piece(source_fd: int, target_fd: int, start: int, count: int) -> int:
    """Copy up to `count` bytes and return how many; 0 at the end. The kernel copies them, or shares disk blocks."""
    try:
        return os.copy_file_range(source_fd, target_fd, count, start, start)
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
        os.lseek(target_fd, start, os.SEEK_SET)
        return os.sendfile(target_fd, source_fd, start, count)
