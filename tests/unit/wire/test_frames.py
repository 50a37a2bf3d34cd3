"""Frames, fields and records: what goes in comes out, however it is cut, and nonsense is refused by name."""

from __future__ import annotations

import contextlib
import itertools
import stat
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import GuestMisbehaved, InvalidRequest
from dutyfree.model import FileKind
from dutyfree.wire.fields import Fields, bytes_field, decode_text, encode_text, number_field
from dutyfree.wire.frames import (
    FROM_GUEST,
    FROM_HOST,
    HEADER,
    MAX_DATA_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameDecoder,
    FrameKind,
    encode_frame,
)
from dutyfree.wire.messages import decode_guest, decode_host
from dutyfree.wire.records import decode_ports, decode_records

ids = st.integers(1, 2**32 - 1)
outputs = st.builds(
    Frame, st.just(int(FrameKind.OUTPUT)), st.sampled_from([1, 2]), ids, st.binary(min_size=1, max_size=300)
)
exits = st.builds(Frame, st.just(int(FrameKind.EXIT)), st.just(0), ids, st.binary(max_size=300))
faults = st.builds(Frame, st.just(int(FrameKind.FAULT)), st.just(0), st.just(0), st.binary(max_size=300))
streams = st.lists(st.one_of(outputs, exits, faults), max_size=12)


def encoded(frames: list[Frame]) -> bytes:
    return b"".join(encode_frame(frame.kind, frame.id, frame.payload, frame.stream) for frame in frames)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_chunking_gives_the_same_frames(frames: list[Frame], places: list[int]) -> None:
    decoder = FrameDecoder(FROM_GUEST)
    assert [frame for piece in cut(encoded(frames), places) for frame in decoder.feed(piece)] == frames


def test_a_byte_at_a_time_gives_the_same_frames() -> None:
    frames = [
        Frame(FrameKind.OUTPUT, 1, 7, b"x" * 40),
        Frame(FrameKind.STARTED, 0, 8, b""),
        Frame(FrameKind.EXIT, 0, 7, b"abc"),
    ]
    decoder = FrameDecoder(FROM_GUEST)
    assert [frame for byte in encoded(frames) for frame in decoder.feed(bytes([byte]))] == frames


@given(st.binary(max_size=400), st.booleans(), st.lists(st.integers(0, 400), max_size=6))
def test_arbitrary_bytes_raise_nothing_but_misbehaviour(data: bytes, from_guest: bool, places: list[int]) -> None:
    decoder = FrameDecoder(FROM_GUEST if from_guest else FROM_HOST)
    decode = decode_guest if from_guest else decode_host
    try:
        for piece in cut(data, places):
            for frame in decoder.feed(piece):
                decode(frame)
    except GuestMisbehaved:
        pass


@given(st.sampled_from(sorted(FROM_GUEST)), st.integers(0, 2), st.integers(0, 3), st.binary(max_size=200))
def test_arbitrary_payloads_raise_nothing_but_misbehaviour(kind: int, stream: int, id: int, payload: bytes) -> None:
    try:
        for frame in FrameDecoder(FROM_GUEST).feed(encode_frame(kind, id, payload, stream)):
            decode_guest(frame)
    except GuestMisbehaved:
        pass


@pytest.mark.parametrize(
    "header",
    [
        (MAX_PAYLOAD_BYTES + 1, FrameKind.EXIT, 0, 0, 1),
        (MAX_DATA_BYTES + 1, FrameKind.OUTPUT, 1, 0, 1),
        (0, FrameKind.OUTPUT, 1, 0, 1),
        (1, FrameKind.OUTPUT, 0, 0, 1),
        (1, FrameKind.OUTPUT, 3, 0, 1),
        (1, FrameKind.EXIT, 1, 0, 1),
        (0, FrameKind.EXIT, 0, 1, 1),
        (0, FrameKind.EXIT, 0, 0, 0),
        (0, FrameKind.GUEST_HELLO, 0, 0, 1),
        (257, FrameKind.STARTED, 0, 0, 1),
        (1, FrameKind.OUTPUT_END, 0, 0, 1),
        (65, FrameKind.PONG, 0, 0, 0),
        (0, FrameKind.RUN, 0, 0, 1),
        (0, 0, 0, 0, 0),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused_before_its_payload(header: tuple[int, ...]) -> None:
    with pytest.raises(GuestMisbehaved):
        FrameDecoder(FROM_GUEST).feed(HEADER.pack(*header))


@pytest.mark.parametrize("size", [1, MAX_DATA_BYTES])
def test_the_largest_and_the_smallest_data_pass(size: int) -> None:
    (frame,) = FrameDecoder(FROM_GUEST).feed(encode_frame(FrameKind.OUTPUT, 1, b"x" * size, 2))
    assert len(frame.payload) == size


def test_the_largest_payload_passes() -> None:
    (frame,) = FrameDecoder(FROM_GUEST).feed(encode_frame(FrameKind.EXIT, 1, bytes(MAX_PAYLOAD_BYTES)))
    assert len(frame.payload) == MAX_PAYLOAD_BYTES


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=10))
def test_fields_come_back_in_order_and_the_last_one_counts(pairs: list[tuple[int, bytes]]) -> None:
    fields = Fields(b"".join(bytes_field(tag, data) for tag, data in pairs))
    for tag, data in dict(pairs).items():
        assert fields.blob(tag) == data
        assert fields.blobs(tag) == tuple(each for other, each in pairs if other == tag)


@given(st.integers(0, 2**64 - 1))
def test_numbers_come_back(number: int) -> None:
    assert Fields(number_field(3, number)).number(3) == number


@pytest.mark.parametrize("payload", [b"\1", b"\1\5\0\0\0abc", b"\1\xff\xff\xff\xff"])
def test_a_payload_that_ends_inside_a_field_is_refused(payload: bytes) -> None:
    with pytest.raises(GuestMisbehaved):
        Fields(payload)


def test_a_number_has_eight_bytes() -> None:
    with pytest.raises(GuestMisbehaved, match="4 bytes"):
        Fields(bytes_field(1, b"\0\0\0\0")).number(1)


def test_a_missing_field_is_refused_unless_it_has_a_default() -> None:
    fields = Fields(b"")
    assert (fields.number(1, 5), fields.blob(1, b"x"), fields.blobs(1)) == (5, b"x", ())
    with pytest.raises(GuestMisbehaved):
        fields.number(1)
    with pytest.raises(GuestMisbehaved):
        fields.blob(1)


@given(st.binary(max_size=60))
def test_any_bytes_survive_as_text(data: bytes) -> None:
    assert encode_text(decode_text(data)) == data


def test_text_that_is_not_unicode_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest):
        encode_text("\ud800")


def record(name: bytes, kind: int, mode: int = 0o644, mtime_ns: int = 5, target: bytes | None = None) -> bytes:
    numbers = {2: kind, 3: mode, 4: 11, 5: mtime_ns % 2**64, 6: 1000, 7: 100}
    fields = bytes_field(1, name) + b"".join(number_field(tag, number) for tag, number in numbers.items())
    if target is not None:
        fields += bytes_field(8, target)
    return struct.pack("<I", len(fields)) + fields


def test_records_say_all_of_a_file() -> None:
    data = (
        record(b"a", stat.S_IFREG, mtime_ns=-1) + record(b"l", stat.S_IFLNK, target=b"/x") + record(b"p", stat.S_IFIFO)
    )
    file, link, pipe = decode_records(data)
    assert (file.name, file.kind, file.mode, file.size_bytes) == ("a", FileKind.FILE, 0o644, 11)
    assert (file.mtime_ns, file.uid, file.gid, file.link_target) == (-1, 1000, 100, None)
    assert (link.kind, link.link_target) == (FileKind.SYMLINK, "/x")
    assert pipe.kind is FileKind.OTHER


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        struct.pack("<I", 50) + b"short",
        record(b"", stat.S_IFREG),
        record(b"a\0b", stat.S_IFREG),
        record(b"n" * 5000, stat.S_IFREG),
        record(b"a", stat.S_IFREG, mode=0o10000),
        struct.pack("<I", 0),
    ],
)
def test_records_that_no_kernel_gave_are_refused(data: bytes) -> None:
    with pytest.raises(GuestMisbehaved):
        decode_records(data)


@given(st.binary(max_size=300))
def test_arbitrary_records_raise_nothing_but_misbehaviour(data: bytes) -> None:
    with contextlib.suppress(GuestMisbehaved):
        decode_records(data)


def port_record(address: bytes, port: int) -> bytes:
    fields = bytes_field(1, address) + number_field(2, port)
    return len(fields).to_bytes(4, "little") + fields


def test_ports_are_decoded() -> None:
    found = decode_ports(port_record(b"127.0.0.1", 8000) + port_record(b"0::0", 1))
    assert [(each.address, each.port) for each in found] == [("127.0.0.1", 8000), ("::", 1)]


@pytest.mark.parametrize("record", [(b"localhost", 1), (b"\xff", 1), (b"", 1), (b"::", 0), (b"::", 65536)])
def test_a_port_that_there_cannot_be_is_refused(record: tuple[bytes, int]) -> None:
    with pytest.raises(GuestMisbehaved):
        decode_ports(port_record(*record))
