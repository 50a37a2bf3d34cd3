"""Trees of local files to and from tar streams; the incoming direction is hostile input.

Symlinks are made after everything else, so that no name in the stream can be resolved through one of them, and only if
they stay in the tree wherever they are followed from.
"""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path
from typing import Final, Protocol, cast

from dutyfree.archive.entries import ArchiveTooLarge, Entry, Kind, path_of
from dutyfree.archive.limits import ArchiveLimits
from dutyfree.archive.reading import PIECE_BYTES, ByteSource, TarReader
from dutyfree.errors import ArchiveRefused, FileFailed, InvalidRequest

MAX_ENTRIES: Final = 1_000_000
_MAX_HEADER_BYTES: Final = 1024 * 1024
_MAX_MTIME_S: Final = 2**33
_MAX_DEPTH: Final = 520
_MAX_TARGET_BYTES: Final = 4096
_MAX_NAMES_BYTES: Final = 256 * 1024 * 1024
_QUOTED_CHARACTERS: Final = 200


class Sink(Protocol):
    """The writable end of a byte stream."""

    def write(self, data: bytes, /) -> int: ...


class BrokenTree(Exception):
    """The stream is not one that the guest's `pack` could have sent."""


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


def unpack(source: ByteSource, root: Path, limit_bytes: int) -> None:
    """Make the directory `root`, which must not exist, from a tar stream.

    Raises BrokenTree, FileFailed for what is refused (EFBIG past the limits, EPERM for links that leave the tree and
    for devices), OSError for what the local disk refuses.
    """
    try:
        _Unpacking(source, root, limit_bytes).run()
    except ArchiveTooLarge as error:
        raise _refused(b"the tree", errno.EFBIG, error.message) from error
    except ArchiveRefused as error:
        raise BrokenTree(error.message) from error
    except (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        # No other program knows this directory, so only the stream itself can cause a clash of names.
        raise BrokenTree(f"entries that do not fit together: {type(error).__name__}") from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise _refused(b"an entry", errno.ENAMETOOLONG, "a name too long for the local disk") from error


def _reader_limits(limit_bytes: int) -> ArchiveLimits:
    """`_Unpacking` counts the content alone; the reader counts headers and padding, too."""
    return ArchiveLimits(
        bytes=limit_bytes + 2 * _MAX_NAMES_BYTES,
        entries=MAX_ENTRIES,
        path_bytes=_MAX_HEADER_BYTES,
        name_bytes=_MAX_HEADER_BYTES,
        depth=_MAX_DEPTH,
        header_bytes=_MAX_HEADER_BYTES,
    )


class _Unpacking:
    def __init__(self, source: ByteSource, root: Path, limit_bytes: int) -> None:
        self._limits = _reader_limits(limit_bytes)
        self._reader = TarReader(source, self._limits)
        self._root = root
        self._limit_bytes = self._left_bytes = limit_bytes
        self._left_names_bytes = _MAX_NAMES_BYTES
        self._symlinks: list[tuple[Path, bytes]] = []
        self._directories: list[tuple[Path, Entry]] = []

    def run(self) -> None:
        self._root.mkdir(mode=0o755)
        for entry in self._reader:
            self._count(entry)
            self._take(entry)
        for path, target in self._symlinks:
            path.symlink_to(os.fsdecode(target))
        for path, entry in reversed(self._directories):
            path.chmod(entry.mode & 0o777 | 0o700)
            _set_mtime(path, entry)

    def _count(self, entry: Entry) -> None:
        self._left_bytes -= entry.size_bytes
        if self._left_bytes < 0:
            raise _refused(entry.name, errno.EFBIG, f"more than {self._limit_bytes} bytes")
        # Names of directories and symlinks are held until the end.
        self._left_names_bytes -= len(entry.name) + len(entry.target)
        if len(entry.target) > _MAX_TARGET_BYTES or self._left_names_bytes < 0:
            raise _refused(entry.name, errno.EFBIG, "names that take too much")

    def _take(self, entry: Entry) -> None:
        parts = path_of(entry.name, entry.name, self._limits)
        path = self._local(parts)
        if parts:
            path.parent.mkdir(parents=True, exist_ok=True)
        match entry.kind:
            case Kind.DIRECTORY:
                path.mkdir(exist_ok=True)
                self._directories.append((path, entry))
            case Kind.SYMLINK:
                self._symlinks.append((path, _inner_target(entry, len(parts) - 1)))
            case Kind.HARD_LINK:
                target = self._local(path_of(entry.target, entry.name, self._limits))
                os.link(target, path, follow_symlinks=False)
            case Kind.FILE:
                self._receive_file(entry, path)
            case _:
                raise _refused(entry.name, errno.EPERM, "a device or another special file")

    def _local(self, parts: tuple[bytes, ...]) -> Path:
        return self._root.joinpath(*map(os.fsdecode, parts))

    def _receive_file(self, entry: Entry, path: Path) -> None:
        with path.open("xb") as file:
            for offset, piece in self._reader.content(entry):
                file.seek(offset)
                file.write(piece)
            file.truncate(entry.size_bytes)
        path.chmod(entry.mode & 0o777 | 0o600)
        _set_mtime(path, entry)


def _refused(name: bytes, number: int, why: str) -> FileFailed:
    return FileFailed.refused("download", os.fsdecode(name)[:_QUOTED_CHARACTERS], number, why)


def _inner_target(entry: Entry, depth: int) -> bytes:
    """The symlink's target, if it stays in the tree from `depth` directories below the root.

    `..` is taken at the front only: behind a name, which may be a symlink itself, it can lead anywhere.
    """
    parts = [part for part in entry.target.split(b"/") if part not in (b"", b".")]
    ups = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    if entry.target.startswith(b"/") or b"\0" in entry.target or ups > depth or b".." in parts[ups:]:
        raise _refused(entry.name, errno.EPERM, "a symlink that leads out of the tree")
    return entry.target


def _set_mtime(path: Path, entry: Entry) -> None:
    if 0 <= entry.mtime_ns <= _MAX_MTIME_S * 1_000_000_000:
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
