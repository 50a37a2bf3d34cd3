"""As much of DNS as a resolver of one sandbox needs: one question in, one answer out. No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from typing import Final

MAX_QUERY_BYTES: Final = 1232
TTL_S: Final = 30
_HEADER: Final = struct.Struct(">HHHHHH")
_RESPONSE, _RECURSION_WANTED, _RECURSION_OFFERED = 0x8000, 0x0100, 0x0080
_OPCODE, _TRUNCATED = 0x7800, 0x0200
_INTERNET: Final = 1
_MAX_NAME_BYTES: Final = 255
_MAX_LABEL_BYTES: Final = 63


class Kind(IntEnum):
    """The types of questions that matter here."""

    A = 1
    AAAA = 28


class Code(IntEnum):
    """How a question is answered."""

    OK = 0
    FAILED = 2
    NO_SUCH_NAME = 3
    REFUSED = 5


@dataclass(frozen=True, slots=True)
class Query:
    """One question."""

    id: int
    name: str
    """As it was asked, letters as they were written; bytes that are no ASCII are `?`."""
    kind: int
    question: bytes
    """The question as it came: an answer repeats it."""
    wants_recursion: bool


def parse_query(data: bytes) -> Query | None:
    """The question in a datagram; None for what is no plain query with one question. Never raises."""
    if not _HEADER.size < len(data) <= MAX_QUERY_BYTES:
        return None
    number, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & (_RESPONSE | _OPCODE | _TRUNCATED) or (questions, answers, authorities) != (1, 0, 0) or additional > 1:
        return None
    labels, at = [], _HEADER.size
    while True:
        if at >= len(data):
            return None
        length = data[at]
        if length == 0:
            break
        if length > _MAX_LABEL_BYTES or at + 1 + length > len(data) or at - _HEADER.size + length > _MAX_NAME_BYTES:
            return None
        labels.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    end = at + 5
    if end > len(data) or (additional == 0 and end != len(data)):
        return None
    kind, group = struct.unpack_from(">HH", data, at + 1)
    if group != _INTERNET or any(b"." in label for label in labels):
        return None
    name = b".".join(labels).decode("ascii", "replace").replace("\ufffd", "?")
    return Query(number, name, kind, data[_HEADER.size : end], bool(flags & _RECURSION_WANTED))


def answer(query: Query, code: Code, address: IPv4Address | None = None) -> bytes:
    """The datagram that answers the query, with one address or none."""
    flags = _RESPONSE | _RECURSION_OFFERED | (_RECURSION_WANTED if query.wants_recursion else 0) | code
    head = _HEADER.pack(query.id, flags, 1, int(address is not None), 0, 0)
    if address is None:
        return head + query.question
    # 0xC00C points to the name in the question.
    return head + query.question + struct.pack(">HHHIH", 0xC00C, Kind.A, _INTERNET, TTL_S, 4) + address.packed
