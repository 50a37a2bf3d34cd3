"""Streams that are measured while they pass, and must turn out to be what was promised."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from dutyfree.errors import ArchiveRefused, InvalidRequest
from dutyfree.images.files import open_regular

PIECE_BYTES = 256 * 1024

OnBytes = Callable[[int], None]


class Measured(io.RawIOBase):
    """Passes `source` on, counting and hashing what passes. Closing it leaves the source open."""

    def __init__(self, source: BinaryIO, *, limit_bytes: int | None = None, on_bytes: OnBytes | None = None) -> None:
        super().__init__()
        self._source = source
        self._limit_bytes = limit_bytes
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()
        self.count_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._source.read(len(buffer))
        self.count_bytes += len(data)
        if self._limit_bytes is not None and self.count_bytes > self._limit_bytes:
            raise ArchiveRefused(f"a stream of at most {self._limit_bytes} bytes goes on after them")
        self._hash.update(data)
        if self._on_bytes is not None and data:
            self._on_bytes(len(data))
        buffer[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        """Of all that has passed so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def drain(self) -> None:
        """Let all that is left pass."""
        scratch = bytearray(PIECE_BYTES)
        while self.readinto(scratch):
            pass


def buffered(stream: io.RawIOBase) -> BinaryIO:
    """`stream` for those who read as much or as little as they like."""
    return io.BufferedReader(stream, PIECE_BYTES)


@contextlib.contextmanager
def opened_blob(path: Path, digest: str, size_bytes: int, on_bytes: OnBytes | None = None) -> Iterator[BinaryIO]:
    """Read a blob; leaving the block reads the rest of it and raises ArchiveRefused unless size and digest are right.

    Links are followed, as layouts of links are common: whatever they lead to is read, and used only if its digest fits.
    """
    with opened_file(path) as file:
        found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != size_bytes:
            raise ArchiveRefused(f"blob {digest} has {found_bytes} bytes, but should have {size_bytes}")
        blob = Measured(file, limit_bytes=size_bytes, on_bytes=on_bytes)
        yield buffered(blob)
        blob.drain()
    if blob.digest != digest:
        raise ArchiveRefused(f"blob {digest} has other content than its digest says", hint="copy the image again")


def opened_file(path: Path) -> BinaryIO:
    """Open a file of a layout. Raises ArchiveRefused."""
    try:
        return open_regular(path)
    except OSError as error:
        raise ArchiveRefused(f"cannot read {path.name!r} of the image: {error.strerror}") from error
    except InvalidRequest as error:
        raise ArchiveRefused(f"{path.name!r} of the image is not a regular file") from error
