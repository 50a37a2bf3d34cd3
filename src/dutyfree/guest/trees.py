"""Trees of local files to and from tar streams; the incoming direction believes nothing.

Symlinks are made after everything else, so that no name in the stream can be resolved through one of them, and only if
they stay in the tree wherever they are followed from.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol, cast

from dutyfree.errors import DutyfreeError, FileFailed, InvalidRequest

PIECE_BYTES: Final = 256 * 1024
MAX_ENTRIES: Final = 1_000_000
_MAX_HEADER_BYTES: Final = 1024 * 1024
_MAX_MTIME_S: Final = 2**33
_MAX_DEPTH: Final = 520
_MAX_TARGET_BYTES: Final = 4096
_MAX_NAMES_BYTES: Final = 256 * 1024 * 1024
_QUOTED_CHARACTERS: Final = 200


class Source(Protocol):
    """The readable end of a byte stream; empty bytes at its end."""

    def read(self, size: int, /) -> bytes: ...


class Sink(Protocol):
    """The writable end of a byte stream."""

    def write(self, data: bytes, /) -> int: ...


class BrokenTree(Exception):
    """What came is not a tar stream that the guest's `pack` could have sent."""


def pack(root: Path, sink: Sink) -> None:
    """Write the tree below `root`. Raises OSError for local files that cannot be read, InvalidRequest for devices."""

    def prepared(member: tarfile.TarInfo) -> tarfile.TarInfo:
        if not (member.isreg() or member.isdir() or member.issym()):
            raise InvalidRequest(f"{member.name!r} is neither a file, a directory nor a symlink")
        # tarfile remembers all that it ever wrote, to find hard links; each name is sent as a file of its own.
        tar.members.clear()  # type: ignore[attr-defined]
        tar.inodes.clear()  # type: ignore[attr-defined]
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        return member

    stream = cast("tarfile._Fileobj", sink)
    with tarfile.open(fileobj=stream, mode="w|", bufsize=PIECE_BYTES, format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, arcname=".", filter=prepared)


def unpack(source: Source, root: Path, limit_bytes: int) -> None:
    """Make the directory `root`, which must not be there, from a tar stream.

    Raises BrokenTree, FileFailed for what is refused (EFBIG past the limits, EPERM for links that leave the tree and
    for devices), OSError for what the local disk refuses.
    """
    try:
        _Unpacking(root, limit_bytes).take(source)
    except (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        # In a directory that nobody else knows, only the stream itself can bring about a clash of names.
        raise BrokenTree(f"entries that do not fit together: {type(error).__name__}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise _refused("an entry", errno.ENAMETOOLONG, "a name too long for the local disk") from error


class _Unpacking:
    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = self._left_bytes = limit_bytes
        self._symlinks: list[tuple[Path, str]] = []
        self._directories: list[tuple[Path, int, float]] = []
        self._left_names_bytes = _MAX_NAMES_BYTES

    def take(self, source: Source) -> None:
        self._root.mkdir(mode=0o755)
        for tar, member in _members(source):
            self._take_member(tar, member)
        for path, target in self._symlinks:
            path.symlink_to(target)
        for path, mode, mtime_s in reversed(self._directories):
            path.chmod(mode & 0o777 | 0o700)
            _set_mtime(path, mtime_s)

    def _take_member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        # What is remembered until the end must not be without bounds either.
        self._left_names_bytes -= len(member.name) + len(member.linkname)
        if len(member.linkname) > _MAX_TARGET_BYTES or self._left_names_bytes < 0:
            raise _refused(member.name, errno.EFBIG, "names that take too much")
        parts = _parts(member.name)
        path = self._root.joinpath(*parts)
        if parts:
            path.parent.mkdir(parents=True, exist_ok=True)
        if member.isdir():
            path.mkdir(exist_ok=True)
            self._directories.append((path, member.mode, member.mtime))
        elif member.issym():
            self._symlinks.append((path, _inner_target(member, len(parts) - 1)))
        elif member.islnk():
            os.link(self._root.joinpath(*_parts(member.linkname)), path, follow_symlinks=False)
        elif member.isreg() and not member.issparse():
            self._left_bytes -= member.size
            if self._left_bytes < 0:
                raise _refused(member.name, errno.EFBIG, f"more than {self._limit_bytes} bytes")
            _receive_file(tar, member, path)
        else:
            raise _refused(member.name, errno.EPERM, "a device or another special file")


def _refused(name: str, number: int, why: str) -> FileFailed:
    return FileFailed.refused("download", name[:_QUOTED_CHARACTERS], number, why)


class _Metered:
    """Bounds what the tar parser may read for the headers of one member: it holds those in memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.left_bytes: int | None = _MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        if self.left_bytes is not None:
            self.left_bytes -= len(data)
            if self.left_bytes < 0:
                raise BrokenTree("the headers of an entry take too much")
        return data


def _members(source: Source) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    meter = _Metered(source)
    with contextlib.ExitStack() as stack:
        tar: tarfile.TarFile | None = None
        for _ in range(MAX_ENTRIES + 1):
            meter.left_bytes = _MAX_HEADER_BYTES
            try:
                if tar is None:
                    stream = cast("tarfile._Fileobj", meter)
                    tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE_BYTES))
                member = tar.next()
            except (DutyfreeError, BrokenTree):
                raise
            except Exception as error:  # tarfile lets whatever its parsing meets through
                raise BrokenTree(f"not a tar stream: {type(error).__name__}") from error
            if member is None:
                return
            meter.left_bytes = None
            tar.members.clear()  # type: ignore[attr-defined]
            tar.pax_headers.clear()  # type: ignore[attr-defined]
            yield tar, member
    raise _refused("the tree", errno.EFBIG, f"more than {MAX_ENTRIES} entries")


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise BrokenTree(f"an entry called {name[:_QUOTED_CHARACTERS]!r}")
    if len(parts) > _MAX_DEPTH:
        raise BrokenTree(f"an entry {len(parts)} directories deep")
    return parts


def _inner_target(member: tarfile.TarInfo, depth: int) -> str:
    """The symlink's target, if it stays in the tree from `depth` directories below the root.

    `..` is taken at the front only: behind a name, which may be a symlink itself, it leads nobody knows where.
    """
    parts = [part for part in member.linkname.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    if member.linkname.startswith("/") or "\0" in member.linkname or ups > depth or ".." in parts[ups:]:
        raise _refused(member.name, errno.EPERM, "a symlink that leads out of the tree")
    return member.linkname


def _receive_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    if content is None:
        raise BrokenTree("a file without content")
    left_bytes = member.size
    with path.open("xb") as file:
        while left_bytes:
            try:
                piece = content.read(min(left_bytes, PIECE_BYTES))
            except tarfile.TarError as error:
                raise BrokenTree("the content of a file is broken") from error
            if not piece:
                raise BrokenTree("the stream ended inside a file")
            left_bytes -= len(piece)
            file.write(piece)
    path.chmod(member.mode & 0o777 | 0o600)
    _set_mtime(path, member.mtime)


def _set_mtime(path: Path, mtime_s: float) -> None:
    if 0 <= mtime_s <= _MAX_MTIME_S:
        os.utime(path, (mtime_s, mtime_s))
