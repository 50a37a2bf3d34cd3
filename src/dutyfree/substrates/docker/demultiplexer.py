"""Demultiplexes a container's output: without a terminal, engines put a header of 8 bytes before each piece."""

from __future__ import annotations

import struct
from typing import Final

from dutyfree.errors import GuestMisbehaved

MAX_PIECE_BYTES: Final = 16 * 1024**2
"""Engines send pieces of about 32 KiB. A much larger size means that the bytes are not a header."""
STDERR_TAIL_BYTES: Final = 2048
_HEADER: Final = struct.Struct(">B3sI")
_STDOUT: Final = 1
_STREAMS: Final = (_STDOUT, 2, 3)
"""The guest's output (1), errors of the guest or the runtime (2), and errors of the engine (3)."""


class Demultiplexer:
    """Extracts the guest's bytes. It keeps only an incomplete header, and the end of the other streams."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = _STDOUT
        self._left_bytes = 0
        self._stderr = b""

    @property
    def stderr_tail(self) -> str:
        """The end of the streams 2 and 3, with unprintable characters as spaces."""
        text = self._stderr.decode("utf-8", "replace")
        return "".join(each if each.isprintable() else " " for each in text).strip()

    def feed(self, data: bytes) -> bytes:
        """The guest's bytes in the received data. Raises GuestMisbehaved for an invalid header."""
        stdout: list[bytes] = []
        at = 0
        while at < len(data):
            if not self._left_bytes:
                at = self._read_header(data, at)
                continue
            piece = data[at : at + self._left_bytes]
            at += len(piece)
            self._left_bytes -= len(piece)
            if self._stream == _STDOUT:
                stdout.append(piece)
            else:
                self._stderr = (self._stderr + piece)[-STDERR_TAIL_BYTES:]
        return b"".join(stdout)

    def _read_header(self, data: bytes, at: int) -> int:
        missing = _HEADER.size - len(self._header)
        self._header += data[at : at + missing]
        if len(self._header) == _HEADER.size:
            self._stream, padding, self._left_bytes = _HEADER.unpack(self._header)
            if self._stream not in _STREAMS or padding != b"\0\0\0" or self._left_bytes > MAX_PIECE_BYTES:
                raise GuestMisbehaved(f"the engine's stream has an invalid header: {self._header.hex()}")
            self._header = b""
        return at + missing
