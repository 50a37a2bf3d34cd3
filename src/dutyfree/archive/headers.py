"""Tar headers as we write them: ustar, with PAX records only where ustar has no room; the same bytes every time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from dutyfree.values import dataclass

BLOCK_BYTES: Final = 512
_NAME_BYTES: Final = 100
_MAX_SIZE: Final = 8**11
_MAX_ID: Final = 8**7
_PAX_NAME: Final = b"././@PaxHeader"

FILE, HARD_LINK, SYMLINK, DIRECTORY, FIFO, _PAX = b"0", b"1", b"2", b"5", b"6", b"x"


@dataclass(frozen=True, slots=True)
class Header:
    """What is said of one entry."""

    name: bytes
    kind: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size_bytes: int = 0
    mtime_ns: int = 0
    target: bytes = b""
    xattrs: Mapping[str, bytes] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """All blocks of it."""
        records = self._records()
        mtime_s = self.mtime_ns // 1_000_000_000
        plain = _block(
            _fitting(self.name, records, "path"),
            self.kind,
            self.mode,
            self.uid if self.uid < _MAX_ID else 0,
            self.gid if self.gid < _MAX_ID else 0,
            self.size_bytes if self.size_bytes < _MAX_SIZE else 0,
            mtime_s if 0 <= mtime_s < _MAX_SIZE else 0,
            _fitting(self.target, records, "linkpath"),
        )
        if not records:
            return plain
        data = b"".join(_record(key, records[key]) for key in sorted(records))
        extended = _block(_PAX_NAME, _PAX, 0o644, 0, 0, len(data), 0, b"")
        return extended + data + padding(len(data)) + plain

    def _records(self) -> dict[str, bytes]:
        records = {f"SCHILY.xattr.{key}": value for key, value in self.xattrs.items()}
        for key, text in (("path", self.name), ("linkpath", self.target)):
            if len(text) > _NAME_BYTES or not text.isascii():
                records[key] = text
                if not _is_utf8(text):
                    records["hdrcharset"] = b"BINARY"
        if self.size_bytes >= _MAX_SIZE:
            records["size"] = b"%d" % self.size_bytes
        for key, number in (("uid", self.uid), ("gid", self.gid)):
            if number >= _MAX_ID:
                records[key] = b"%d" % number
        if self.mtime_ns % 1_000_000_000 or not 0 <= self.mtime_ns < _MAX_SIZE * 1_000_000_000:
            records["mtime"] = _time(self.mtime_ns)
        return records


def padding(size_bytes: int) -> bytes:
    """The zeros behind content of this size."""
    return bytes(-size_bytes % BLOCK_BYTES)


def _fitting(text: bytes, records: Mapping[str, bytes], key: str) -> bytes:
    return text[:_NAME_BYTES] if key in records else text


def _block(
    name: bytes, kind: bytes, mode: int, uid: int, gid: int, size_bytes: int, mtime_s: int, target: bytes
) -> bytes:
    block = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0%07o\0%07o\0%011o\0%011o\0        " % (mode, uid, gid, size_bytes, mtime_s),
            kind,
            target.ljust(100, b"\0"),
            b"ustar\x0000",
            bytes(64),
            b"0000000\x000000000\x00",
            bytes(167),
        )
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _record(key: str, value: bytes) -> bytes:
    """`LENGTH KEY=VALUE\\n`, where the length counts its own digits."""
    rest = b" " + os.fsencode(key) + b"=" + value + b"\n"
    length = len(rest) + 1
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d" % length + rest


def _time(time_ns: int) -> bytes:
    seconds, fraction = divmod(abs(time_ns), 1_000_000_000)
    text = f"{'-' if time_ns < 0 else ''}{seconds}.{fraction:09d}"
    return text.rstrip("0").rstrip(".").encode()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
