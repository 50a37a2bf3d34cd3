"""The framing of Connect streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.server.e2b import connect
from dutyfree.server.e2b.connect import Decoder

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
messages = st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=5)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(messages, st.data())
def test_messages_survive_any_cuts(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(map(connect.encode, sent)) + connect.encode_end()
    decoder, received = Decoder(1 << 20), []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        received += decoder.feed(stream[at : at + size])
        at += size
    decoder.finish()
    assert received == sent
    assert decoder.ended


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    decoder = Decoder(64)
    try:
        for message in decoder.feed(data):
            assert isinstance(message, dict)
        decoder.finish()
    except InvalidRequest:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\0\0\0\x02{}",
        b"\x80\0\0\0\x02{}",
        b"\0\xff\xff\xff\xff",
        b"\0\0\0\0\x41" + b"x" * 65,
        b"\0\0\0\0\x02[]",
        b"\0\0\0\0\x03{}x",
        b"\0\0\0\0\x03NaN",
        b"\x02\0\0\0\x02{}\0",
    ],
)
def test_hostile_envelopes_are_refused_before_they_cost_memory(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Decoder(64).feed(data)


def test_half_a_message_is_refused_at_the_end() -> None:
    decoder = Decoder(64)
    assert decoder.feed(b"\0\0\0\0\x02{") == []
    with pytest.raises(InvalidRequest, match="middle"):
        decoder.finish()


def test_deep_json_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        connect.load(b'{"a":' + b"[" * 200_000)


def test_times_of_headers() -> None:
    assert connect.timeout_s(None) is None
    assert connect.timeout_s("0") is None
    assert connect.timeout_s("1500") == 1.5
    for wrong in ("-1", "1.5", "x", "1" * 11, "\u0661"):
        with pytest.raises(InvalidRequest):
            connect.timeout_s(wrong)
    assert connect.keepalive_s("50", 90.0) == 50
    assert connect.keepalive_s("0", 90.0) == 1
    assert connect.keepalive_s("soon", 90.0) == 90
