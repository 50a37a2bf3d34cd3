"""Docker's framing of a container's output, taken apart however it is cut into pieces."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import GuestMisbehaved
from dutyfree.substrates.docker.demultiplexer import MAX_PIECE_BYTES, STDERR_TAIL_BYTES, Demultiplexer

PIECES = st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.binary(max_size=40)), max_size=12)


def framed(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(pieces=PIECES, places=st.lists(st.integers(0, 600), max_size=30))
def test_the_guests_bytes_come_out_whole_however_they_were_cut(
    pieces: list[tuple[int, bytes]], places: list[int]
) -> None:
    streams = Demultiplexer()
    received = b"".join(framed(stream, data) for stream, data in pieces)
    said = b"".join(streams.feed(part) for part in cut(received, places))
    assert said == b"".join(data for stream, data in pieces if stream == 1)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_no_input_gives_anything_but_bytes_or_the_one_error(data: bytes, places: list[int]) -> None:
    streams = Demultiplexer()
    try:
        said = sum(len(streams.feed(part)) for part in cut(data, places))
    except GuestMisbehaved:
        return
    assert said <= len(data)


@pytest.mark.parametrize(
    "header",
    [
        struct.pack(">BxxxI", 0, 3),
        struct.pack(">BxxxI", 4, 3),
        b"\x01\x00\x01\x00" + struct.pack(">I", 3),
        struct.pack(">BxxxI", 1, MAX_PIECE_BYTES + 1),
        b"HTTP/1.1",
    ],
)
def test_what_is_no_header_is_refused(header: bytes) -> None:
    streams = Demultiplexer()
    assert streams.feed(framed(1, b"fine")) == b"fine"
    with pytest.raises(GuestMisbehaved, match="an invalid header"):
        streams.feed(header)


def test_a_byte_at_a_time() -> None:
    streams = Demultiplexer()
    received = framed(1, b"one") + framed(2, b"complaint") + framed(1, b"") + framed(1, b"two")
    assert b"".join(streams.feed(bytes([byte])) for byte in received) == b"onetwo"
    assert streams.stderr_tail == "complaint"


def test_of_complaints_the_end_is_kept_and_only_what_prints() -> None:
    streams = Demultiplexer()
    for _ in range(100):
        assert streams.feed(framed(2, b"x" * 1000)) == b""
    streams.feed(framed(3, b"\x1b[2J the end\n"))
    assert len(streams.stderr_tail) <= STDERR_TAIL_BYTES
    assert streams.stderr_tail.endswith("x [2J the end")
