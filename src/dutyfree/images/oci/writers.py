"""Writes the files of an image into a directory or into one tar."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol


class ImageWriter(Protocol):
    """Writes the files of an image by their paths. If a path is written twice, both contents must be the same."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file."""

    def move(self, name: str, file: Path) -> None:
        """Add a file; the original may be moved or removed."""


class DirectoryWriter:
    """Writes an image as a directory at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.joinpath("blobs", "sha256").mkdir(parents=True)

    def put(self, name: str, data: bytes) -> None:
        (self._path / name).write_bytes(data)

    def move(self, name: str, file: Path) -> None:
        file.rename(self._path / name)


class TarWriter:
    """Writes an image as a tar whose bytes depend only on the files in it."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._names: set[str] = set()
        for name in ("blobs", "blobs/sha256"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)

    def put(self, name: str, data: bytes) -> None:
        self._add(name, len(data), io.BytesIO(data))

    def move(self, name: str, file: Path) -> None:
        with file.open("rb") as stream:
            self._add(name, file.stat().st_size, stream)
        file.unlink()

    def _add(self, name: str, size_bytes: int, stream: BinaryIO) -> None:
        if name in self._names:
            return
        self._names.add(name)
        member = tarfile.TarInfo(name)
        member.size = size_bytes
        self._tar.addfile(member, stream)


@contextlib.contextmanager
def image_writer(path: Path, *, as_tar: bool) -> Iterator[ImageWriter]:
    """A writer for a new image at `path`; the image is complete at the end of the block."""
    if not as_tar:
        yield DirectoryWriter(path)
        return
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        yield TarWriter(tar)


class HashedSink:
    """Writes to `file`, and counts and hashes the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.count_bytes = 0

    def write(self, data: bytes, /) -> int:
        self._hash.update(data)
        self.count_bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def digest(self) -> str:
        """The digest of all bytes written so far."""
        return f"sha256:{self._hash.hexdigest()}"
