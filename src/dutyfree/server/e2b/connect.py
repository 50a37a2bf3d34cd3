"""The framing of Connect streams: one byte of flags, four of length, then JSON. Pure and strict."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dutyfree.errors import InvalidRequest

HEADER_BYTES: Final = 5
COMPRESSED: Final = 1
END: Final = 2
MAX_TIMEOUT_MS: Final = 10**10
_DIGITS: Final = re.compile(r"\d{1,10}", re.ASCII)
JsonObject = dict[str, Any]


def encode(message: JsonObject, *, flags: int = 0) -> bytes:
    """One envelope."""
    data = dump(message)
    return bytes((flags,)) + len(data).to_bytes(4, "big") + data


def encode_end(error: JsonObject | None = None) -> bytes:
    """The last envelope of a stream, with the error that ended it."""
    return encode({} if error is None else {"error": error}, flags=END)


def dump(message: Any) -> bytes:
    """JSON in as few bytes as possible."""
    return json.dumps(message, separators=(",", ":")).encode()


def load(data: bytes) -> JsonObject:
    """A JSON object. Raises InvalidRequest for anything else."""
    try:
        value = json.loads(data or b"{}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidRequest("the message is no JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the message is no JSON object")
    return value


class Decoder:
    """Takes the bytes of a stream in any pieces, and gives its messages."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rest = bytearray()
        self.ended = False
        """Whether the end of the stream was seen."""

    def feed(self, data: bytes) -> list[JsonObject]:
        """The messages that are complete now. Raises InvalidRequest for what is no stream of uncompressed JSON."""
        if data and self.ended:
            raise InvalidRequest("data after the end of the stream")
        self._rest += data
        found = []
        at = 0
        while len(self._rest) - at >= HEADER_BYTES and not self.ended:
            flags = self._rest[at]
            length = int.from_bytes(self._rest[at + 1 : at + HEADER_BYTES], "big")
            if flags & ~END:
                raise InvalidRequest("a compressed message" if flags == COMPRESSED else f"unknown flags {flags:#x}")
            if length > self._limit_bytes:
                raise InvalidRequest(f"a message of {length} bytes; the limit is {self._limit_bytes}")
            if len(self._rest) - at - HEADER_BYTES < length:
                break
            at += HEADER_BYTES
            message = load(bytes(self._rest[at : at + length]))
            at += length
            if flags & END:
                self.ended = True
                if len(self._rest) > at:
                    raise InvalidRequest("data after the end of the stream")
            else:
                found.append(message)
        del self._rest[:at]
        return found

    def finish(self) -> None:
        """The body has ended. Raises InvalidRequest in the middle of a message."""
        if self._rest:
            raise InvalidRequest("the stream ends in the middle of a message")


def timeout_s(header: str | None) -> float | None:
    """The time that a client gives a call, from `Connect-Timeout-Ms`; None without one. Raises InvalidRequest."""
    if header is None or header == "":
        return None
    if _DIGITS.fullmatch(header) is None:
        raise InvalidRequest(f"Connect-Timeout-Ms is {header!r:.40}; it must be a number of up to 10 digits")
    return int(header) / 1000 or None


def keepalive_s(header: str | None, default_s: float) -> float:
    """The time between two signs of life, from `Keepalive-Ping-Interval`, at least a second."""
    if header is None or _DIGITS.fullmatch(header) is None:
        return default_s
    return max(1.0, min(float(header), 3600.0))


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
