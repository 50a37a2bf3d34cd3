"""An append-only record of what happened: a header, then one JSON object per line.

A process that is killed while it appends leaves a last line without its newline. No `append` has returned
for it: the reader ignores it and the next writer removes it. Any other damage is an error, since silently skipping a
record would change the numbers that are made from the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.failure import on_failure

VERSION = 1
MAX_LINE_BYTES = 4 * 1024 * 1024
_FORMAT = "dutyfree-journal"
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class JournalWriter:
    """Appends records to one file. One writer at a time: the file is locked for as long as this is open.

    Raises CapacityError if another writer holds the file, InvalidRequest if it is not a journal of this version, and
    OSError for what the file system refuses.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with on_failure(os.close, self._fd):
            self._lock()
            self._prepare()

    def append(self, record: Mapping[str, Any], *, sync: bool = False) -> None:
        """Add one record; with `sync` it is on the disk when this returns.

        Raises InvalidRequest for what JSON cannot hold or what is too long for one line.
        """
        self.extend((record,), sync=sync)

    def extend(self, records: Iterable[Mapping[str, Any]], *, sync: bool = False) -> None:
        """Add several records, or none, with one call of the kernel.

        Raises as `append` does, and OSError where the disk is full; then nothing was added, not even a part.
        """
        self._write(b"".join(_line(record) for record in records))
        if sync:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close and unlock the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CapacityError(f"{self._path} is locked by another writer") from error
        if not os.fstat(self._fd).st_nlink:  # by a writer that took it away before we had the lock
            raise CapacityError(f"{self._path} was removed meanwhile")

    def _prepare(self) -> None:
        """Cut off a torn last line, then check the header or write it."""
        size_bytes = os.fstat(self._fd).st_size
        whole_bytes = _end_of_last_line(self._fd, size_bytes)
        if whole_bytes == 0:
            head = os.pread(self._fd, len(_header()), 0)
            if not _header().startswith(head):
                raise InvalidRequest(f"{self._path} is not a journal")
            os.ftruncate(self._fd, 0)
            self._write(_header() + b"\n")
            return
        with self._path.open("rb") as file:
            _check_header(self._path, file.readline(MAX_LINE_BYTES))
        os.ftruncate(self._fd, whole_bytes)

    def _write(self, lines: bytes) -> None:
        if self._fd < 0:
            raise InvalidRequest(f"the journal {self._path} is closed")
        size_bytes = os.fstat(self._fd).st_size
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            # What comes after half a line would be lost with it, or be taken for damage.
            os.ftruncate(self._fd, size_bytes)
            raise


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records, oldest first. A torn last line is left out; a file that ends in `.gz` is unpacked as it is read.

    Raises InvalidRequest, naming the line, for a file that is not a journal of this version or is damaged anywhere
    else; OSError for what the file system refuses; OSError, EOFError or zlib.error for what cannot be unpacked.
    """
    source = Path(path)
    with _opened(source) as file:
        header = file.readline(MAX_LINE_BYTES)
        if not header.endswith(b"\n") and _header().startswith(header):
            return
        _check_header(source, header)
        for number, line in _whole_lines(source, file):
            yield _record(source, number, line)


def _opened(path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return path.open("rb")
    import gzip  # few journals are compressed, and most importers of this module read none

    return cast("BinaryIO", gzip.open(path, "rb"))


def _whole_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 1
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if line.endswith(b"\n"):
            yield number, line
        elif file.read(1):
            raise InvalidRequest(f"line {number} of {path} is longer than {MAX_LINE_BYTES} bytes")


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        line = _ENCODER.encode(dict(record)).encode("utf-8") + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"a journal record is not JSON: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"a journal record of {len(line)} bytes is too long; the limit is {MAX_LINE_BYTES}")
    return line


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"line {number} of {path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"line {number} of {path} is not a record")
    return value


def _header() -> bytes:
    return json.dumps({"format": _FORMAT, "version": VERSION}, separators=(",", ":")).encode()


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise InvalidRequest(f"{path} is not a journal")
    if header.get("version") != VERSION:
        raise InvalidRequest(f"{path} is a journal of version {header.get('version')!r}; this reads version {VERSION}")


def _end_of_last_line(fd: int, size_bytes: int) -> int:
    """How much of the file is whole lines."""
    end = size_bytes
    while end > 0:
        begin = max(0, end - 65536)
        newline = os.pread(fd, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0
