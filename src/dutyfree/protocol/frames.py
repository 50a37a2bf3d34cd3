"""The frames between a node and its clients: those of a guest's actions, and a few of their own.

A client greets with HELLO and waits for WELCOME; neither belongs to the stream that is resumed. Then it sends CALLs,
each answered by REPLY or FAILED under the same id, and the frames of actions as it would to a guest. An action that the
node cannot go on with ends with FAILED. A client that breaks the rules gets ENDED, and is over. Both sides acknowledge
what they received, so that the other need not keep it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from dutyfree.codec.document import dumps, loads
from dutyfree.errors import GuestMisbehaved, InvalidRequest
from dutyfree.wire.frames import FROM_GUEST, FROM_HOST, Frame, FrameKind, Rule, encode_frame

VERSION: Final = 1
UPGRADE_PATH: Final = "/dutyfree/native"
PROTOCOL: Final = "dutyfree"
SNAPSHOT_PREFIX: Final = "dutyfree-snapshot:"
"""How the references of images begin that are snapshots on a node."""
MAX_GREETING_BYTES: Final = 16 * 1024
MAX_CALL_BYTES: Final = 32 * 1024 * 1024
"""The files that a lease binds, 16 MiB at most, are in one call."""
_HEAD: Final = struct.Struct("<I")


class NodeFrame(IntEnum):
    """The kinds beside those of `FrameKind`."""

    HELLO = 33
    ACK = 34
    CALL = 35
    CANCEL = 36
    WELCOME = 97
    REPLY = 98
    FAILED = 99
    ENDED = 100


_ACK: Final = Rule(of_action=False, least_bytes=8, most_bytes=8)
_OF_ACTIONS: Final = {
    FrameKind.RUN,
    FrameKind.INPUT,
    FrameKind.INPUT_END,
    FrameKind.OUTPUT_CREDIT,
    FrameKind.SIGNAL,
    FrameKind.RESIZE,
}
_FROM_ACTIONS: Final = {
    FrameKind.STARTED,
    FrameKind.OUTPUT,
    FrameKind.OUTPUT_END,
    FrameKind.INPUT_CREDIT,
    FrameKind.EXIT,
    FrameKind.REFUSED,
}
HELLO_ONLY: Final[Mapping[int, Rule]] = {NodeFrame.HELLO: Rule(of_action=False, most_bytes=MAX_GREETING_BYTES)}
WELCOME_ONLY: Final[Mapping[int, Rule]] = {
    NodeFrame.WELCOME: Rule(of_action=False, most_bytes=MAX_GREETING_BYTES),
    NodeFrame.FAILED: Rule(of_action=False, most_bytes=MAX_GREETING_BYTES),
}
FROM_CLIENT: Final[Mapping[int, Rule]] = {
    **{kind: rule for kind, rule in FROM_HOST.items() if kind in _OF_ACTIONS},
    NodeFrame.ACK: _ACK,
    NodeFrame.CALL: Rule(of_action=True, least_bytes=_HEAD.size, most_bytes=MAX_CALL_BYTES),
    NodeFrame.CANCEL: Rule(of_action=True, most_bytes=0),
}
FROM_NODE: Final[Mapping[int, Rule]] = {
    **{kind: rule for kind, rule in FROM_GUEST.items() if kind in _FROM_ACTIONS},
    NodeFrame.ACK: _ACK,
    NodeFrame.REPLY: Rule(of_action=True, least_bytes=_HEAD.size, most_bytes=MAX_CALL_BYTES),
    NodeFrame.FAILED: Rule(of_action=True, most_bytes=MAX_CALL_BYTES),
    NodeFrame.ENDED: Rule(of_action=False, most_bytes=MAX_GREETING_BYTES),
}


def encode_document(kind: NodeFrame, call_id: int, document: object, body: bytes = b"") -> bytes:
    """A frame of a JSON document and, behind it, bytes that are not JSON. Raises InvalidRequest if it is too long."""
    head = dumps(document).encode()
    payload = b"".join((_HEAD.pack(len(head)), head, body))
    if len(payload) > MAX_CALL_BYTES:
        raise InvalidRequest(f"a message of {len(payload)} bytes; at most {MAX_CALL_BYTES} can be sent")
    return encode_frame(kind, call_id, payload)


def decode_document(frame: Frame) -> tuple[Any, bytes]:
    """What `encode_document` was given. Raises GuestMisbehaved."""
    payload = frame.payload
    (size_bytes,) = _HEAD.unpack_from(payload)
    if size_bytes > len(payload) - _HEAD.size:
        raise GuestMisbehaved("a document that is longer than its frame")
    end = _HEAD.size + size_bytes
    try:
        return loads(payload[_HEAD.size : end]), payload[end:]
    except InvalidRequest as error:
        raise GuestMisbehaved(error.message) from None


def encode_plain(kind: NodeFrame, document: object, call_id: int = 0) -> bytes:
    """A frame that is one JSON document: greetings and failures."""
    return encode_frame(kind, call_id, dumps(document).encode())


def decode_plain(frame: Frame) -> dict[str, Any]:
    """The document of a greeting or failure. Raises GuestMisbehaved."""
    try:
        document = loads(frame.payload)
    except InvalidRequest as error:
        raise GuestMisbehaved(error.message) from None
    if not isinstance(document, dict):
        raise GuestMisbehaved("a greeting or failure that is not a table")
    return document
