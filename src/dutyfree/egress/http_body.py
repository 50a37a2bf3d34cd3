"""The body of one HTTP request: exactly its bytes go on, and nothing that follows them. No I/O."""

from __future__ import annotations

import re
from typing import Final

from dutyfree.egress.refusal import Refused

MAX_CHUNK_LINE_BYTES: Final = 18
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")


class SizedBody:
    """A body whose length was given."""

    def __init__(self, length_bytes: int) -> None:
        self._left_bytes = length_bytes

    @property
    def done(self) -> bool:
        """Whether all of it has been seen."""
        return self._left_bytes == 0

    def feed(self, data: bytes) -> bytes:
        """The part of `data` that belongs to the body."""
        part = data[: self._left_bytes]
        self._left_bytes -= len(part)
        return part


class ChunkedBody:
    """A body in chunks. Extensions and trailers are refused."""

    def __init__(self) -> None:
        self._line = b""
        """The beginning of a line that has not ended."""
        self._left_bytes = 0
        """Of the present chunk, with its line end."""
        self._last = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The part of `data` that belongs to the body, its framing included. Raises Refused."""
        parts = []
        while data and not self.done:
            if self._left_bytes > 2:
                part = data[: self._left_bytes - 2]
                self._left_bytes -= len(part)
                parts.append(part)
                data = data[len(part) :]
                continue
            line, data = self._take_line(data)
            if line is None:
                break
            self._end_line(line)
            parts.append(line + b"\r\n")
        return b"".join(parts)

    def _take_line(self, data: bytes) -> tuple[bytes | None, bytes]:
        line = self._line + data[: MAX_CHUNK_LINE_BYTES + 2]
        end = line.find(b"\r\n")
        if end < 0:
            if len(line) > MAX_CHUNK_LINE_BYTES or b"\n" in line:
                raise Refused("a chunk of the body is not valid", 400)
            self._line = line
            return None, b""
        used = end + 2 - len(self._line)
        self._line = b""
        return line[:end], data[used:]

    def _end_line(self, line: bytes) -> None:
        if self._left_bytes == 2 or self._last:
            if line:
                raise Refused("a chunk of the body is not valid", 400)
            self._left_bytes = 0
            self.done = self._last
            return
        if not _SIZE.fullmatch(line):
            raise Refused("a chunk of the body is not valid", 400)
        size_bytes = int(line, 16)
        self._last = size_bytes == 0
        self._left_bytes = 0 if self._last else size_bytes + 2


Body = SizedBody | ChunkedBody
