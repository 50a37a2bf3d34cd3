"""Streams that count and hash their bytes, to check size and digest of a blob."""

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


class HashingReader(io.RawIOBase):
    """Reads from `source`, and counts and hashes the bytes. Closing it leaves the source open."""

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
            raise ArchiveRefused(f"a stream has more than the allowed {self._limit_bytes} bytes")
        self._hash.update(data)
        if self._on_bytes is not None and data:
            self._on_bytes(len(data))
        buffer[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        """The digest of all bytes read so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def drain(self) -> None:
        """Read the rest of the stream."""
        scratch = bytearray(PIECE_BYTES)
        while self.readinto(scratch):
            pass


def buffered(stream: io.RawIOBase) -> BinaryIO:
    """`stream` with a buffer, so that reads may have any size."""
    return io.BufferedReader(stream, PIECE_BYTES)


@contextlib.contextmanager
def opened_blob(path: Path, digest: str, size_bytes: int, on_bytes: OnBytes | None = None) -> Iterator[BinaryIO]:
    """Open a blob; leaving the block reads its rest and raises ArchiveRefused unless size and digest are right.

    Symlinks are followed, because layouts made of symlinks are common; the digest protects against wrong targets.
    """
    with opened_file(path) as file:
        found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != size_bytes:
            raise ArchiveRefused(f"blob {digest} has {found_bytes} bytes, but should have {size_bytes}")
        blob = HashingReader(file, limit_bytes=size_bytes, on_bytes=on_bytes)
        yield buffered(blob)
        blob.drain()
    if blob.digest != digest:
        raise ArchiveRefused(f"the content of blob {digest} does not match its digest", hint="copy the image again")


def opened_file(path: Path) -> BinaryIO:
    """Open a file of a layout. Raises ArchiveRefused."""
    try:
        return open_regular(path)
    except OSError as error:
        raise ArchiveRefused(f"cannot read {path.name!r} of the image: {error.strerror}") from error
    except InvalidRequest as error:
        raise ArchiveRefused(f"{path.name!r} of the image is not a regular file") from error
