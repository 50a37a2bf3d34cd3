"""Takes a container's output apart: without a terminal, engines put a header of 8 bytes before each piece of it."""

from __future__ import annotations

import struct
from typing import Final

from dutyfree.errors import GuestMisbehaved

MAX_PIECE_BYTES: Final = 16 * 1024**2
"""Engines send pieces of some 32 KiB: more means that what was read is no header."""
LAST_WORDS_BYTES: Final = 2048
_HEADER: Final = struct.Struct(">B3sI")
_STDOUT: Final = 1
_STREAMS: Final = (_STDOUT, 2, 3)
"""What the guest says, what it or the runtime complains of, and what the engine itself does."""


class Demultiplexer:
    """Holds nothing back but a header that is not whole yet, and the end of what was said beside the guest's bytes."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = _STDOUT
        self._left_bytes = 0
        self._heard = b""

    @property
    def last_words(self) -> str:
        """The end of what came from anywhere but the guest's standard output; only what prints."""
        text = self._heard.decode("utf-8", "replace")
        return "".join(each if each.isprintable() else " " for each in text).strip()

    def feed(self, data: bytes) -> bytes:
        """The guest's bytes in what was received. Raises GuestMisbehaved for anything but a header where one is due."""
        said: list[bytes] = []
        at = 0
        while at < len(data):
            if not self._left_bytes:
                at = self._read_header(data, at)
                continue
            piece = data[at : at + self._left_bytes]
            at += len(piece)
            self._left_bytes -= len(piece)
            if self._stream == _STDOUT:
                said.append(piece)
            else:
                self._heard = (self._heard + piece)[-LAST_WORDS_BYTES:]
        return b"".join(said)

    def _read_header(self, data: bytes, at: int) -> int:
        missing = _HEADER.size - len(self._header)
        self._header += data[at : at + missing]
        if len(self._header) == _HEADER.size:
            self._stream, padding, self._left_bytes = _HEADER.unpack(self._header)
            if self._stream not in _STREAMS or padding != b"\0\0\0" or self._left_bytes > MAX_PIECE_BYTES:
                raise GuestMisbehaved(f"the engine's stream has {self._header.hex()} where a header is due")
            self._header = b""
        return at + missing
