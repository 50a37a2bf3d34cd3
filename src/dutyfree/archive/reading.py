"""A reader of tar streams that trusts nothing: ustar, PAX and GNU headers, strictly, in bounded memory and time.

The standard library's reader is made for archives of friends: it takes a damaged header for the end of the archive,
reads names of any length into memory, spends quadratic time on some headers, and rounds times to floats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from dutyfree.archive.entries import ArchiveTooLarge, Entry, Kind, refused
from dutyfree.archive.limits import ArchiveLimits
from dutyfree.archive.records import number, parse_records, time_ns
from dutyfree.errors import ArchiveRefused
from dutyfree.formatting import quoted

BLOCK_BYTES: Final = 512
PIECE_BYTES: Final = 256 * 1024
_HEADER: Final = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_USTAR: Final = b"ustar\0"
_KINDS: Final = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,
    b"S": Kind.FILE,
    b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK,
    b"3": Kind.DEVICE,
    b"4": Kind.DEVICE,
    b"5": Kind.DIRECTORY,
    b"6": Kind.FIFO,
}
_XATTR: Final = "SCHILY.xattr."
_ZEROS: Final = bytes(BLOCK_BYTES)
_MAX_SIZE: Final = 2**63 - 1


class ByteSource(Protocol):
    """The readable end of a byte stream; empty bytes at its end."""

    def read(self, size: int, /) -> bytes: ...


class TarReader:
    """Iterate over the entries; between two of them, `content` gives what the first one holds.

    All of the stream is read, also what follows the end mark, which must be zeros. Raises ArchiveRefused for what is
    no tar archive, is damaged or cut off, or is past the limits, and whatever the stream itself raises.
    """

    def __init__(
        self, stream: ByteSource, limits: ArchiveLimits, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        self._stream = stream
        self._limits = limits
        self._on_bytes = on_bytes
        self._left_bytes = limits.bytes
        self._left_entries = limits.entries
        self._buffer = memoryview(b"")
        self._payload_bytes = 0
        """What is still to come of the current entry's content, as the archive stores it."""
        self._padding_bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry
            self._skip()
        self._finish()

    def content(self, entry: Entry) -> Iterator[tuple[int, memoryview]]:
        """The current entry's content: pieces, each with its offset in the file."""
        for offset, length in entry.extents:
            end = offset + length
            while offset < end:
                piece = self._some(end - offset)
                self._payload_bytes -= len(piece)
                yield offset, piece
                offset += len(piece)

    def _next(self) -> Entry | None:
        """Gathers the headers of one entry, of which there may be several."""
        records: dict[str, bytes] = {}
        long_name = long_target = None
        left_header_bytes = self._limits.header_bytes
        while True:
            block = self._exactly(BLOCK_BYTES)
            if block == _ZEROS:
                if records or long_name is not None or long_target is not None:
                    raise ArchiveRefused("the archive is damaged: its end mark follows headers without an entry")
                return None
            fields = _checked(block)
            kind, size = fields[7], number(fields[4])
            if kind not in b"xXgLK":
                self._count_entry()
                return self._entry(fields, block, records, long_name, long_target, left_header_bytes)
            left_header_bytes -= size + BLOCK_BYTES
            if size < 0 or left_header_bytes < 0:
                raise refused(_text(fields[0]), f"has headers of more than {self._limits.header_bytes} bytes")
            self._spend(size, _text(fields[0]))
            data = self._exactly(size)
            self._exactly(-size % BLOCK_BYTES)
            if kind == b"L":
                long_name = _text(data)
            elif kind == b"K":
                long_target = _text(data)
            elif kind != b"g":  # global headers state nothing that files need, and no container engine heeds them
                records.update(parse_records(data))

    def _entry(
        self,
        fields: tuple[bytes, ...],
        block: bytes,
        records: dict[str, bytes],
        long_name: bytes | None,
        long_target: bytes | None,
        left_header_bytes: int,
    ) -> Entry:
        name = _text(fields[0])
        if fields[9] == _USTAR and (prefix := _text(fields[15])):
            name = prefix + b"/" + name
        name = records.get("path") or long_name or name
        kind = _KINDS.get(fields[7])
        if kind is None:
            raise refused(name, f"is of type {fields[7]!r}, which layers do not have")
        if fields[7] == b"\0" and name.endswith(b"/"):
            kind = Kind.DIRECTORY
        entry = Entry(
            name=name,
            kind=kind,
            mode=number(fields[1]) & 0o7777,
            uid=_stated(records, "uid", fields[2]),
            gid=_stated(records, "gid", fields[3]),
            size_bytes=_stated(records, "size", fields[4]),
            mtime_ns=time_ns(records["mtime"]) if records.get("mtime") else number(fields[5]) * 1_000_000_000,
            target=records.get("linkpath") or long_target or _text(fields[8]),
            xattrs={key.removeprefix(_XATTR): value for key, value in records.items() if key.startswith(_XATTR)},
        )
        self._payload_bytes = self._padding_bytes = 0
        if kind is Kind.FILE:
            self._begin_content(entry, block if fields[7] == b"S" else None, records, left_header_bytes)
        else:
            entry.size_bytes = 0  # whatever is stated: no content follows
        return entry

    def _begin_content(
        self, entry: Entry, sparse_block: bytes | None, records: dict[str, bytes], left_header_bytes: int
    ) -> None:
        stored = entry.size_bytes
        if not 0 <= stored <= _MAX_SIZE:
            raise refused(entry.name, f"has a size of {stored} bytes")
        self._payload_bytes, self._padding_bytes = stored, -stored % BLOCK_BYTES
        entry.extents = [(0, stored)] if stored else []
        if sparse_block is not None:
            self._read_gnu_sparse(entry, sparse_block, left_header_bytes)
        elif any(key.startswith("GNU.sparse.") for key in records):
            self._read_pax_sparse(entry, records, left_header_bytes)
        _check_extents(entry, self._payload_bytes)
        self._spend(max(entry.size_bytes, stored), entry.name)

    def _read_gnu_sparse(self, entry: Entry, block: bytes, left_header_bytes: int) -> None:
        """Old GNU format: the map is in the header, and in blocks right behind it."""
        extents = _gnu_extents(block[386:482])
        more = block[482] != 0
        entry.size_bytes = number(block[483:495])
        while more:
            left_header_bytes -= BLOCK_BYTES
            if left_header_bytes < 0:
                raise refused(entry.name, f"has headers of more than {self._limits.header_bytes} bytes")
            block = self._exactly(BLOCK_BYTES)
            extents += _gnu_extents(block[:504])
            more = block[504] != 0
        entry.extents = extents

    def _read_pax_sparse(self, entry: Entry, records: dict[str, bytes], left_header_bytes: int) -> None:
        """GNU format 1.0: the map is in front of the content, in lines of decimal digits."""
        if (records.get("GNU.sparse.major"), records.get("GNU.sparse.minor")) != (b"1", b"0"):
            hint = "make the archive with GNU tar's --sparse-version=1.0, or without --sparse"
            raise refused(entry.name, "is a sparse file in an old format", hint)
        entry.name = records.get("GNU.sparse.name") or entry.name
        entry.size_bytes = _decimal(records.get("GNU.sparse.realsize", b""), entry.name)
        lines: list[bytes] = []
        wanted, rest = 1, b""
        while len(lines) < wanted:
            left_header_bytes -= BLOCK_BYTES
            if left_header_bytes < 0 or self._payload_bytes < BLOCK_BYTES:
                raise refused(entry.name, "has a sparse map that does not end")
            self._payload_bytes -= BLOCK_BYTES
            *found, rest = (rest + self._exactly(BLOCK_BYTES)).split(b"\n")
            lines += found
            if wanted == 1 and lines:
                wanted = 1 + 2 * min(_decimal(lines[0], entry.name), self._limits.header_bytes)
        numbers = [_decimal(line, entry.name) for line in lines[1:wanted]]
        entry.extents = [pair for pair in zip(numbers[::2], numbers[1::2], strict=True) if pair[1]]

    def _count_entry(self) -> None:
        self._left_entries -= 1
        if self._left_entries < 0:
            raise ArchiveTooLarge(f"the archive has more than {self._limits.entries} entries")

    def _spend(self, size_bytes: int, name: bytes) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            what = f"archive entry {quoted(name)} makes the archive larger than {self._limits.bytes} bytes unpacked"
            raise ArchiveTooLarge(what)

    def _skip(self) -> None:
        left = self._payload_bytes + self._padding_bytes
        while left:
            left -= len(self._some(left))
        self._payload_bytes = self._padding_bytes = 0

    def _finish(self) -> None:
        while piece := self._read():
            self._spend(len(piece), b"(end mark)")
            if piece.count(0) != len(piece):
                raise ArchiveRefused("the archive has data behind its end mark")

    def _exactly(self, size: int) -> bytes:
        piece = self._some(size) if size else memoryview(b"")
        if len(piece) == size:
            return bytes(piece)
        pieces = [bytes(piece)]
        missing = size - len(piece)
        while missing:
            piece = self._some(missing)
            pieces.append(bytes(piece))
            missing -= len(piece)
        return b"".join(pieces)

    def _some(self, most: int) -> memoryview:
        """Up to `most` bytes, and at least one."""
        if not self._buffer:
            self._buffer = memoryview(self._read())
            if not self._buffer:
                raise ArchiveRefused("the archive is cut off: it ends without an end mark")
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece

    def _read(self) -> bytes:
        if self._buffer:
            rest, self._buffer = bytes(self._buffer), memoryview(b"")
            return rest
        data = self._stream.read(PIECE_BYTES)
        if data and self._on_bytes is not None:
            self._on_bytes(len(data))
        return data


def _checked(block: bytes) -> tuple[bytes, ...]:
    fields: tuple[bytes, ...] = _HEADER.unpack(block)
    stated = number(fields[6])
    if stated != sum(block) - sum(fields[6]) + 8 * ord(" "):
        # Some old programs added the bytes up as signed ones.
        signed = sum(struct.unpack("512b", block)) - sum(struct.unpack("8b", fields[6])) + 8 * ord(" ")
        if stated != signed:
            raise ArchiveRefused("this is no tar archive, or it is damaged: a header has a wrong checksum")
    return fields


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _stated(records: dict[str, bytes], key: str, field: bytes) -> int:
    value = records.get(key)
    return _decimal(value, key.encode()) if value else number(field)


def _decimal(value: bytes, name: bytes) -> int:
    if not value.isdigit() or len(value) > 20:
        raise refused(name, f"has {value[:40]!r} where a number belongs")
    return int(value)


def _gnu_extents(table: bytes) -> list[tuple[int, int]]:
    pairs = [(number(table[at : at + 12]), number(table[at + 12 : at + 24])) for at in range(0, len(table), 24)]
    return [pair for pair in pairs if pair[1]]


def _check_extents(entry: Entry, stored_bytes: int) -> None:
    at = held = 0
    for offset, length in entry.extents:
        if offset < at or length < 0 or offset + length > entry.size_bytes:
            raise refused(entry.name, "has a sparse map that does not fit the file")
        at = offset + length
        held += length
    if held > stored_bytes or not 0 <= entry.size_bytes <= _MAX_SIZE:
        raise refused(entry.name, "has a sparse map that does not fit its content")
