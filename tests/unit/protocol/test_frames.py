"""Documents in frames: what goes in comes out; hostile payloads are refused by one error."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import GuestMisbehaved, InvalidRequest
from dutyfree.protocol.frames import (
    FROM_CLIENT,
    FROM_NODE,
    HELLO_ONLY,
    MAX_CALL_BYTES,
    MAX_GREETING_BYTES,
    WELCOME_ONLY,
    NodeFrame,
    decode_document,
    decode_plain,
    encode_document,
    encode_plain,
)
from dutyfree.wire.frames import HEADER, Frame, FrameDecoder, FrameKind, encode_frame

documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.integers(1, 2**32 - 1), documents, st.binary(max_size=200))
def test_documents_with_bytes_behind_them(call_id: int, document: Any, body: bytes) -> None:
    data = encode_document(NodeFrame.CALL, call_id, document, body)
    (frame,) = FrameDecoder(FROM_CLIENT).feed(data)
    assert (frame.kind, frame.id, decode_document(frame)) == (NodeFrame.CALL, call_id, (document, body))


@given(st.dictionaries(st.text(max_size=8), documents, max_size=4))
def test_greetings(document: dict[str, Any]) -> None:
    (frame,) = FrameDecoder(HELLO_ONLY).feed(encode_plain(NodeFrame.HELLO, document))
    assert decode_plain(frame) == document


@given(st.binary(min_size=4, max_size=300))
def test_any_payload_is_a_document_or_misbehaviour(payload: bytes) -> None:
    for decode in (decode_document, decode_plain):
        with suppress(GuestMisbehaved):
            decode(Frame(NodeFrame.CALL, 0, 1, payload))


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack("<I", 5) + b"{}",  # longer than its frame
        struct.pack("<I", 2**32 - 1) + b"{}",
        struct.pack("<I", 2) + b"{",
        struct.pack("<I", 3) + b"\xff\xff\xff",
        struct.pack("<I", 9) + b'{"a":NaN}',
        struct.pack("<I", 200_000) + b"[" * 200_000,  # too deep
        struct.pack("<I", 5000) + b"1" * 5000,  # a number that takes long to read
    ],
)
def test_hostile_documents(payload: bytes) -> None:
    with pytest.raises(GuestMisbehaved):
        decode_document(Frame(NodeFrame.CALL, 0, 1, payload))


@pytest.mark.parametrize("payload", [b"[]", b"5", b'"x"', b"null", b""])
def test_a_greeting_is_a_table(payload: bytes) -> None:
    with pytest.raises(GuestMisbehaved):
        decode_plain(Frame(NodeFrame.HELLO, 0, 0, payload))


def test_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        encode_document(NodeFrame.CALL, 1, {}, bytes(MAX_CALL_BYTES))


HOST_ONLY = (FrameKind.HOST_HELLO, FrameKind.PING, FrameKind.QUIT, FrameKind.STOOD_STILL)
GUEST_ONLY = (FrameKind.GUEST_HELLO, FrameKind.PONG, FrameKind.FAULT)


@pytest.mark.parametrize("kind", [*HOST_ONLY, *GUEST_ONLY, NodeFrame.HELLO, NodeFrame.REPLY, NodeFrame.WELCOME, 200])
def test_a_client_cannot_speak_as_host_guest_or_node(kind: int) -> None:
    with pytest.raises(GuestMisbehaved):
        FrameDecoder(FROM_CLIENT).feed(encode_frame(kind, 0))


@pytest.mark.parametrize("kind", [*HOST_ONLY, *GUEST_ONLY, NodeFrame.CALL, NodeFrame.HELLO, NodeFrame.WELCOME])
def test_a_node_cannot_speak_as_another(kind: int) -> None:
    with pytest.raises(GuestMisbehaved):
        FrameDecoder(FROM_NODE).feed(encode_frame(kind, 0))


@pytest.mark.parametrize(("rules", "kind"), [(HELLO_ONLY, NodeFrame.HELLO), (WELCOME_ONLY, NodeFrame.WELCOME)])
def test_greetings_are_small(rules: Any, kind: NodeFrame) -> None:
    with pytest.raises(GuestMisbehaved):  # by its header alone
        FrameDecoder(rules).feed(HEADER.pack(MAX_GREETING_BYTES + 1, kind, 0, 0, 0))


def test_a_call_is_refused_by_its_header() -> None:
    with pytest.raises(GuestMisbehaved):
        FrameDecoder(FROM_CLIENT).feed(HEADER.pack(MAX_CALL_BYTES + 1, NodeFrame.CALL, 0, 0, 1))
