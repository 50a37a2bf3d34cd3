"""From a layer's archive to its tree. The archive is hostile; the tree is ours alone until it is complete."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from dutyfree.archive.entries import META_PREFIX, OPAQUE_NAME, WHITEOUT_PREFIX, Entry, Kind, path_of, refused
from dutyfree.archive.limits import DEFAULT_LIMITS, ArchiveLimits
from dutyfree.archive.reading import TarReader
from dutyfree.errors import ArchiveRefused
from dutyfree.formatting import quoted
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees.attributes import (
    CAPABILITY,
    DEVICES,
    is_whiteout,
    make_opaque,
    make_whiteout,
    stored_capability,
)
from dutyfree.images.trees.descent import Descent, remove_below
from dutyfree.images.trees.disk import FULL, disk_error, disk_errors
from dutyfree.images.trees.links import allowed_moves
from dutyfree.values import dataclass

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IMPLIED_MODE: Final = 0o755
_REMEMBERED_BYTES: Final = 300
_MODEST_BYTES: Final = 2048
_SIGN_OF_LIFE_ENTRIES: Final = 256
# In the keys of directories: it sorts before whatever a name can hold, so that keys sort as paths do.
_BETWEEN_NAMES: Final = b"\0"
_MIN_TIME_NS: Final = -(2**31) * 1_000_000_000
_MAX_TIME_NS: Final = 2**34 * 1_000_000_000
# What no file system here holds although its calls are right.
_UNFIT: Final = frozenset({errno.ENAMETOOLONG, errno.EFBIG, errno.EMLINK, errno.EILSEQ})
# Labels that another machine's security modules gave; they mean nothing here.
_LABELS: Final = frozenset({"security.selinux", "security.ima", "security.evm", "security.SMACK64"})


@dataclass(slots=True)
class Unpacked:
    """What came out of an archive."""

    entries: int = 0
    bytes: int = 0
    """Of the files' content, holes included."""
    left_out: int = 0
    """Entries and attributes that sandboxes have no use for: device nodes below /dev, labels, notes of AUFS's."""


def unpack(
    stream: BinaryIO,
    tree: Path,
    ownership: Ownership,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    on_bytes: Callable[[int], None] | None = None,
) -> Unpacked:
    """Fill the empty directory `tree` from an uncompressed tar stream, which is read to its end.

    OCI whiteouts become those of overlay mounts. `on_bytes` hears of every piece that was read, and of 0 bytes now and
    then: what it raises ends the work. Raises ArchiveRefused, CapacityError when the disk is full, SubstrateFailed; the
    tree is then of no use. Nothing is ever written outside.
    """
    with disk_errors("cannot unpack the archive"), Descent.at(tree) as here, Descent.at(tree) as links:
        unpacking = _Unpacking(TarReader(stream, limits, on_bytes), here, links, ownership, limits, on_bytes)
        return unpacking.run()


class _Unpacking:
    def __init__(
        self,
        reader: TarReader,
        here: Descent,
        links: Descent,
        ownership: Ownership,
        limits: ArchiveLimits,
        on_bytes: Callable[[int], None] | None,
    ) -> None:
        self._reader = reader
        self._here = here
        self._links = links
        """A second place in the tree, for the targets of hard links."""
        self._ownership = ownership
        self._limits = limits
        self._on_bytes = on_bytes
        self._left_bytes = limits.remembered_bytes
        self._directories: dict[bytes, tuple[int, int, int, int]] = {}
        """Mode, owner, group and time for each: they would be spoilt, or stand in the way, before all is in."""
        self._done = Unpacked()

    def run(self) -> Unpacked:
        self._remember((), _IMPLIED_MODE, self._ownership.stored(0), self._ownership.stored(0), 0)
        for entry in self._reader:
            self._done.entries += 1
            self._done.bytes += entry.size_bytes
            try:
                self._take(entry)
            except OSError as error:
                if error.errno in _UNFIT:
                    raise refused(entry.name, f"cannot be kept: {error.strerror}") from error
                raise disk_error(f"cannot unpack {quoted(entry.name)}", error) from error
            self._check_effort(entry)
        self._finish_directories()
        return self._done

    def _check_effort(self, entry: Entry) -> None:
        self._give_sign_of_life(self._done.entries)
        if self._here.moves + self._links.moves > allowed_moves(self._done.entries):
            hint = "make the archive anew, with its entries in the order of their paths"
            raise refused(entry.name, "is one too many that lies far from the one before it", hint)

    def _give_sign_of_life(self, count: int) -> None:
        if self._on_bytes is not None and count % _SIGN_OF_LIFE_ENTRIES == 0:
            self._on_bytes(0)

    def _take(self, entry: Entry) -> None:
        path = path_of(entry.name, entry.name, self._limits)
        _check_time(entry)
        self._sift_xattrs(entry)
        if any(part.startswith(WHITEOUT_PREFIX) for part in path):
            self._take_mark(entry, path)
        elif not path:
            self._take_root(entry)
        elif entry.kind is Kind.DEVICE:
            self._take_device(entry, path)
        else:
            self._enter(path[:-1], entry)
            self._take_node(entry, path)

    def _take_node(self, entry: Entry, path: tuple[bytes, ...]) -> None:
        name = path[-1]
        match entry.kind:
            case Kind.DIRECTORY:
                self._make_directory(entry, path)
            case Kind.FILE:
                self._make_file(entry, path)
            case Kind.HARD_LINK:
                self._make_hard_link(entry, path)
            case Kind.SYMLINK:
                if not entry.target or b"\0" in entry.target or len(entry.target) >= self._limits.path_bytes:
                    raise refused(entry.name, "is a symlink with a target that cannot be")
                self._clear(path)
                os.symlink(entry.target, name, dir_fd=self._here.fd)
                self._set_owner_and_time(entry, name)
            case Kind.FIFO:
                self._clear(path)
                os.mkfifo(name, 0o600, dir_fd=self._here.fd)
                self._set_owner_and_time(entry, name)
                os.chmod(name, entry.mode, dir_fd=self._here.fd)

    def _take_root(self, entry: Entry) -> None:
        if entry.kind is not Kind.DIRECTORY:
            raise refused(entry.name, f"is the root, and a {entry.kind.value}")
        self._here.go(())
        self._set_xattrs(entry, self._here.fd)
        self._remember_entry(entry, ())

    def _take_device(self, entry: Entry, path: tuple[bytes, ...]) -> None:
        if path[0] != DEVICES or len(path) == 1:
            hint = "sandboxes have their own /dev, and nothing else may lead to a driver"
            raise refused(entry.name, "is a device node", hint)
        self._done.left_out += 1

    def _take_mark(self, entry: Entry, path: tuple[bytes, ...]) -> None:
        """A deletion, or the like: it is about what lies below, never about entries of the same archive."""
        *parents, name = path
        if any(part.startswith(META_PREFIX) and part != OPAQUE_NAME for part in path):
            self._done.left_out += 1
            return
        deleted = name.removeprefix(WHITEOUT_PREFIX)
        if any(part.startswith(WHITEOUT_PREFIX) for part in parents) or deleted in (b"", b".", b".."):
            raise refused(entry.name, "is a deletion of nothing that can be")
        self._enter(parents, entry)
        if name == OPAQUE_NAME:
            make_opaque(self._here.fd, self._ownership)
            return
        info = self._info(deleted)
        if info is None:
            make_whiteout(deleted, self._here.fd, self._ownership)
        elif stat.S_ISDIR(info.st_mode):
            self._here.enter(deleted)
            make_opaque(self._here.fd, self._ownership)

    def _enter(self, parents: Sequence[bytes], entry: Entry) -> None:
        """To the directory of an entry, made if no entry has named it."""
        missing = self._here.approach(parents)
        for at, name in enumerate(missing, len(parents) - len(missing)):
            try:
                self._here.enter(name)
            except FileNotFoundError:
                self._imply(parents[: at + 1])
            except NotADirectoryError:
                info = self._info(name)
                if info is None or not is_whiteout(info):
                    what = "a symlink" if info and stat.S_ISLNK(info.st_mode) else "not a directory"
                    raise refused(entry.name, f"is below {quoted(b'/'.join(parents[: at + 1]))}, {what}") from None
                os.unlink(name, dir_fd=self._here.fd)
                self._imply(parents[: at + 1])
                make_opaque(self._here.fd, self._ownership)

    def _imply(self, path: Sequence[bytes]) -> None:
        os.mkdir(path[-1], 0o700, dir_fd=self._here.fd)
        self._here.enter(path[-1])
        self._remember(path, _IMPLIED_MODE, self._ownership.stored(0), self._ownership.stored(0), 0)

    def _make_directory(self, entry: Entry, path: tuple[bytes, ...]) -> None:
        name = path[-1]
        info = self._info(name)
        replaces = info is not None and not stat.S_ISDIR(info.st_mode)
        if replaces:
            os.unlink(name, dir_fd=self._here.fd)
        if info is None or replaces:
            os.mkdir(name, 0o700, dir_fd=self._here.fd)
        if replaces or entry.xattrs:
            self._here.enter(name)
            self._set_xattrs(entry, self._here.fd)
        if replaces:
            # What it replaces, a deletion for one, hid all that lies below.
            make_opaque(self._here.fd, self._ownership)
        self._remember_entry(entry, path)

    def _make_file(self, entry: Entry, path: tuple[bytes, ...]) -> None:
        owner = self._owner(entry)
        try:
            fd = os.open(path[-1], _NEW_FILE, 0o600, dir_fd=self._here.fd)
        except FileExistsError:
            self._clear(path)
            fd = os.open(path[-1], _NEW_FILE, 0o600, dir_fd=self._here.fd)
        try:
            end = 0
            for offset, piece in self._reader.content(entry):
                end = offset + _write(fd, offset, piece)
            if end != entry.size_bytes:
                os.ftruncate(fd, entry.size_bytes)
            if self._ownership.shift is not None:
                os.fchown(fd, *owner)
            # In this order: a change of owner takes capabilities away, and a mode may forbid us to set attributes.
            self._set_xattrs(entry, fd)
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _make_hard_link(self, entry: Entry, path: tuple[bytes, ...]) -> None:
        target = path_of(entry.target, entry.name, self._limits)
        if target[: len(path)] == path or not target:
            raise refused(entry.name, f"is a hard link to {quoted(entry.target)}, which it replaces")
        try:
            self._links.go(target[:-1])
            info = os.stat(target[-1], dir_fd=self._links.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            info = None
        if info is None or not stat.S_ISREG(info.st_mode):
            raise refused(entry.name, f"is a hard link to {quoted(entry.target)}, which is no file of this archive")
        self._clear(path)
        self._links.go(target[:-1])
        os.link(target[-1], path[-1], src_dir_fd=self._links.fd, dst_dir_fd=self._here.fd, follow_symlinks=False)

    def _clear(self, path: tuple[bytes, ...]) -> None:
        """Make room for an entry: a later one replaces an earlier one."""
        info = self._info(path[-1])
        if info is None:
            return
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(path[-1], dir_fd=self._here.fd)
            return
        self._links.go(())  # it may stand in what goes
        for gone in remove_below(self._here.fd, path[-1]):
            below = gone.split(b"/") if gone else []
            self._directories.pop(_BETWEEN_NAMES.join((*path, *below)), None)

    def _info(self, name: bytes) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._here.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _owner(self, entry: Entry) -> tuple[int, int]:
        try:
            return self._ownership.stored(entry.uid), self._ownership.stored(entry.gid)
        except ArchiveRefused as error:
            raise refused(entry.name, f"belongs to user {entry.uid}, group {entry.gid}", error.hint) from None

    def _set_owner_and_time(self, entry: Entry, name: bytes) -> None:
        owner = self._owner(entry)
        self._done.left_out += len(entry.xattrs)  # the kernel keeps none but on files and directories
        if self._ownership.shift is not None:
            os.chown(name, *owner, dir_fd=self._here.fd, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=self._here.fd, follow_symlinks=False)

    def _sift_xattrs(self, entry: Entry) -> None:
        """Keep those that mean something here, as the disk has them."""
        kept: dict[str, bytes] = {}
        for key, value in entry.xattrs.items():
            if key in _LABELS or (key == CAPABILITY and self._ownership.shift is None):
                self._done.left_out += 1
            elif key == CAPABILITY:
                kept[key] = self._stored_capability(entry, value)
            elif key.startswith("user.") and not key.startswith("user.overlay.") and "\0" not in key:
                kept[key] = value
            else:
                raise refused(entry.name, f"has the attribute {quoted(_encoded(key))}")
        entry.xattrs = kept

    def _stored_capability(self, entry: Entry, value: bytes) -> bytes:
        try:
            return stored_capability(value, self._ownership)
        except ArchiveRefused as error:
            raise refused(entry.name, f"has a {CAPABILITY} that is none: {error.message}") from None

    def _set_xattrs(self, entry: Entry, fd: int) -> None:
        for key, value in entry.xattrs.items():
            try:
                os.setxattr(fd, _encoded(key), value)
            except OSError as error:
                if error.errno in FULL and _size_bytes(entry.xattrs) < _MODEST_BYTES:
                    raise
                # File systems that have no room for so much beside one file say that they are full, too.
                raise refused(entry.name, f"has an attribute of {len(value)} bytes: {error.strerror}") from error

    def _remember_entry(self, entry: Entry, path: Sequence[bytes]) -> None:
        self._remember(path, entry.mode, *self._owner(entry), entry.mtime_ns)

    def _remember(self, path: Sequence[bytes], mode: int, uid: int, gid: int, mtime_ns: int) -> None:
        key = _BETWEEN_NAMES.join(path)
        if key not in self._directories:
            self._left_bytes -= len(key) + _REMEMBERED_BYTES
            if self._left_bytes < 0:
                raise ArchiveRefused("the archive has too many directories, or too long names for them")
        self._directories[key] = (mode, uid, gid, mtime_ns)

    def _finish_directories(self) -> None:
        """Deepest first: a directory may forbid us, too, to enter it."""
        for count, key in enumerate(sorted(self._directories, reverse=True)):
            self._give_sign_of_life(count)
            mode, uid, gid, mtime_ns = self._directories[key]
            self._here.go(key.split(_BETWEEN_NAMES) if key else ())
            fd = self._here.fd
            if self._ownership.shift is not None:
                os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(mtime_ns, mtime_ns))


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _size_bytes(xattrs: Mapping[str, bytes]) -> int:
    return sum(len(_encoded(key)) + len(value) for key, value in xattrs.items())


def _check_time(entry: Entry) -> None:
    if not _MIN_TIME_NS <= entry.mtime_ns <= _MAX_TIME_NS:
        raise refused(entry.name, f"was changed {entry.mtime_ns // 1_000_000_000} s after 1970, which no disk can note")


def _write(fd: int, offset: int, piece: memoryview) -> int:
    """All of the piece; returns its length."""
    at = 0
    while at < len(piece):
        at += os.pwrite(fd, piece[at:], offset + at)
    return at
