"""The two shapes in which an image is written: a directory, and one tar."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol


class ImageWriter(Protocol):
    """Takes the files of an image, each by its path in it. What has the same path twice is the same."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file."""

    def move(self, name: str, file: Path) -> None:
        """Take over a file, which is gone from where it was afterwards."""


class DirectoryWriter:
    """Makes a directory at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.joinpath("blobs", "sha256").mkdir(parents=True)

    def put(self, name: str, data: bytes) -> None:
        (self._path / name).write_bytes(data)

    def move(self, name: str, file: Path) -> None:
        file.rename(self._path / name)


class TarWriter:
    """Writes a tar that depends on nothing but what is put into it."""

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
    """A writer of a new image at `path`, which is complete at the end."""
    if not as_tar:
        yield DirectoryWriter(path)
        return
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        yield TarWriter(tar)


class HashedSink:
    """Passes on to `file` what is written, counting and hashing it."""

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
        """Of all that was written so far."""
        return f"sha256:{self._hash.hexdigest()}"
