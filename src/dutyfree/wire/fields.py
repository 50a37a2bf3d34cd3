"""Field lists: `u8 tag, u32 length, bytes`, back to back, little endian; the payload of every structured message."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from dutyfree.errors import GuestMisbehaved, InvalidRequest

_HEAD: Final = struct.Struct("<BI")
_NUMBER: Final = struct.Struct("<BIQ")


@lru_cache(maxsize=1024)
def number_field(tag: int, number: int) -> bytes:
    """An integer, as a field of exactly 8 bytes. Requests repeat the same limits again and again."""
    return _NUMBER.pack(tag, 8, number)


def bytes_field(tag: int, data: bytes) -> bytes:
    """A field of raw bytes."""
    return _HEAD.pack(tag, len(data)) + data


def encode_text(text: str) -> bytes:
    """A path, an argument or an environment entry as bytes. Raises InvalidRequest for text that is not Unicode."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        at = error.start
    # The message shows neither the text nor the original error: the text may be an environment entry with a secret.
    raise InvalidRequest(f"character {at} of a text cannot be represented as bytes: it is a lone surrogate")


def decode_text(data: bytes) -> str:
    """The inverse of `encode_text`: bytes that are not UTF-8 survive the round trip."""
    return data.decode("utf-8", "surrogateescape")


class Fields:
    """A parsed payload. Unknown tags are ignored.

    Every method, and the constructor, raises GuestMisbehaved for a payload that the protocol does not allow.
    """

    __slots__ = ("_last", "_payload")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._last = dict(_pairs(payload))

    def has(self, tag: int) -> bool:
        """Whether the field is there at all."""
        return tag in self._last

    def number(self, tag: int, default: int | None = None) -> int:
        """The integer in a field, or `default` where it is absent. Without a default, the field is required."""
        data = self._last.get(tag)
        if data is None:
            if default is None:
                raise GuestMisbehaved(f"field {tag} is missing")
            return default
        if len(data) != 8:
            raise GuestMisbehaved(f"field {tag} has {len(data)} bytes where an integer has 8")
        return int.from_bytes(data, "little")

    def blob(self, tag: int, default: bytes | None = None) -> bytes:
        """The raw bytes of a field, or `default` where it is absent. Without a default, the field is required."""
        data = self._last.get(tag, default)
        if data is None:
            raise GuestMisbehaved(f"field {tag} is missing")
        return data

    def blobs(self, tag: int) -> tuple[bytes, ...]:
        """Every field of that tag, in order."""
        return tuple(data for each, data in _pairs(self._payload) if each == tag)


def pairs(payload: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Each field: its tag, its data, and both as they were encoded. Raises GuestMisbehaved."""
    at, size, head_bytes = 0, len(payload), _HEAD.size
    while at < size:
        if size - at < head_bytes:
            raise GuestMisbehaved("a payload ended inside the head of a field")
        tag, length = _HEAD.unpack_from(payload, at)
        begin = at + head_bytes
        end = begin + length
        if end > size:
            raise GuestMisbehaved(f"field {tag} claims {length} bytes where {size - begin} are left")
        yield tag, payload[begin:end], payload[at:end]
        at = end


def _pairs(payload: bytes) -> Iterator[tuple[int, bytes]]:
    at, size, head_bytes = 0, len(payload), _HEAD.size
    while at < size:
        if size - at < head_bytes:
            raise GuestMisbehaved("a payload ended inside the head of a field")
        tag, length = _HEAD.unpack_from(payload, at)
        at += head_bytes
        end = at + length
        if end > size:
            raise GuestMisbehaved(f"field {tag} claims {length} bytes where {size - at} are left")
        yield tag, payload[at:end]
        at = end
