"""Frames: the outermost layer of the wire protocol, encoded and decoded without any I/O.

The rules, and the table of kinds, are those of `docs/reference/wire-protocol.md`. A decoder is given one direction's
rules and refuses everything that they do not allow, as early as the header shows it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from dutyfree.errors import GuestMisbehaved

HEADER: Final = struct.Struct("<IBBHI")
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_DATA_BYTES: Final = 64 * 1024
MAX_PING_BYTES: Final = 64
MAX_STARTED_BYTES: Final = 256
MAX_ID: Final = 0xFFFF_FFFF

STDIN, STDOUT, STDERR = 0, 1, 2


class FrameKind(IntEnum):
    """The type of a frame. The host sends those below 64, the guest those above."""

    HOST_HELLO = 1
    RUN = 2
    INPUT = 3
    INPUT_END = 4
    OUTPUT_CREDIT = 5
    SIGNAL = 6
    RESIZE = 7
    PING = 8
    QUIT = 9
    STOOD_STILL = 10
    GUEST_HELLO = 65
    STARTED = 66
    OUTPUT = 67
    INPUT_CREDIT = 68
    EXIT = 69
    REFUSED = 70
    PONG = 71
    FAULT = 72
    OUTPUT_END = 73


class Frame(NamedTuple):
    """One frame with a valid header; the payload is not parsed yet."""

    kind: int
    stream: int
    id: int
    payload: bytes


class Rule(NamedTuple):
    """The allowed header values of one kind of frame."""

    of_action: bool
    least_bytes: int = 0
    most_bytes: int = MAX_PAYLOAD_BYTES
    streams: tuple[int, ...] = (0,)


FROM_HOST: Final[Mapping[int, Rule]] = {
    FrameKind.HOST_HELLO: Rule(of_action=False),
    FrameKind.RUN: Rule(of_action=True),
    FrameKind.INPUT: Rule(of_action=True, least_bytes=1, most_bytes=MAX_DATA_BYTES, streams=(STDIN,)),
    FrameKind.INPUT_END: Rule(of_action=True, most_bytes=0),
    FrameKind.OUTPUT_CREDIT: Rule(of_action=True),
    FrameKind.SIGNAL: Rule(of_action=True),
    FrameKind.RESIZE: Rule(of_action=True),
    FrameKind.PING: Rule(of_action=False, most_bytes=MAX_PING_BYTES),
    FrameKind.QUIT: Rule(of_action=False, most_bytes=0),
    FrameKind.STOOD_STILL: Rule(of_action=False),
}

FROM_GUEST: Final[Mapping[int, Rule]] = {
    FrameKind.GUEST_HELLO: Rule(of_action=False),
    FrameKind.STARTED: Rule(of_action=True, most_bytes=MAX_STARTED_BYTES),
    FrameKind.OUTPUT: Rule(of_action=True, least_bytes=1, most_bytes=MAX_DATA_BYTES, streams=(STDOUT, STDERR)),
    FrameKind.INPUT_CREDIT: Rule(of_action=True),
    FrameKind.EXIT: Rule(of_action=True),
    FrameKind.REFUSED: Rule(of_action=True),
    FrameKind.PONG: Rule(of_action=False, most_bytes=MAX_PING_BYTES),
    FrameKind.FAULT: Rule(of_action=False),
    FrameKind.OUTPUT_END: Rule(of_action=True, most_bytes=0),
}


def data_header(action_id: int, size_bytes: int) -> bytes:
    """The header of an INPUT frame, for callers that send its payload without a copy."""
    return HEADER.pack(size_bytes, FrameKind.INPUT, 0, 0, action_id)


def encode_frame(kind: int, action_id: int, payload: bytes = b"", stream: int = 0) -> bytes:
    """The bytes of one frame. The caller makes sure that it keeps the rules of its kind."""
    return HEADER.pack(len(payload), kind, stream, 0, action_id) + payload


class FrameDecoder:
    """Cuts a byte stream into frames. Holds at most one unfinished frame."""

    def __init__(self, rules: Mapping[int, Rule]) -> None:
        self._rules = rules
        self._wanted_bytes = HEADER.size
        self._parts: list[bytes] = []
        self._held_bytes = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises GuestMisbehaved at the first header that breaks the rules.

        A decoder that has raised is not to be fed again.
        """
        if self._parts:
            self._parts.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._wanted_bytes:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        return self._cut(data)

    def _cut(self, data: bytes) -> list[Frame]:
        frames = []
        start, size = 0, len(data)
        wanted = HEADER.size
        while size - start >= HEADER.size:
            length, kind, stream, zero, action_id = HEADER.unpack_from(data, start)
            self._check(length, kind, stream, zero, action_id)
            wanted = HEADER.size + length
            if size - start < wanted:
                break
            end = start + wanted
            frames.append(Frame(kind, stream, action_id, data[start + HEADER.size : end]))
            start = end
            wanted = HEADER.size
        if start < size:
            self._parts.append(data[start:])
        self._held_bytes, self._wanted_bytes = size - start, wanted
        return frames

    def _check(self, length: int, kind: int, stream: int, zero: int, action_id: int) -> None:
        rule = self._rules.get(kind)
        if rule is None:
            raise GuestMisbehaved(f"a frame of unknown kind {kind}")
        if not rule.least_bytes <= length <= rule.most_bytes:
            raise GuestMisbehaved(f"a frame of kind {kind} with a payload of {length} bytes")
        if zero or stream not in rule.streams or bool(action_id) != rule.of_action:
            raise GuestMisbehaved(f"a frame of kind {kind} with stream {stream}, id {action_id}, reserved {zero}")
