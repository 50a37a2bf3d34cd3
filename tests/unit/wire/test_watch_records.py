"""Records of a watch: decoded in any pieces, and refused when no watch can have sent them."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import GuestMisbehaved
from dutyfree.model import FileEvent, FileEventKind
from dutyfree.wire.fields import bytes_field, number_field
from dutyfree.wire.watch_records import WatchDecoder


def record(kind: int, path: bytes | None = None, directory: int = 0, former: bytes | None = None) -> bytes:
    fields = number_field(1, kind)
    if path is not None:
        fields += bytes_field(2, path) + number_field(3, directory)
    if former is not None:
        fields += bytes_field(4, former)
    return struct.pack("<I", len(fields)) + fields


READY = record(7)
STREAM = READY + record(1, b"a/b", 1) + record(6) + record(4, b"new", 0, b"a/old") + record(2, b"\xff")
EVENTS = [
    FileEvent(FileEventKind.CREATED, "/src/a/b", is_directory=True),
    FileEvent(FileEventKind.OVERFLOW, "/src"),
    FileEvent(FileEventKind.MOVED, "/src/new", moved_from="/src/a/old"),
    FileEvent(FileEventKind.CHANGED, "/src/\udcff"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_any_pieces_give_the_same_events(cuts: list[int]) -> None:
    places = sorted({0, len(STREAM), *cuts})
    decoder = WatchDecoder("/src/")
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS
    assert decoder.ready


def test_the_root_directory_can_be_watched() -> None:
    decoder = WatchDecoder("/")
    assert decoder.feed(READY + record(3, b"a") + record(6)) == [
        FileEvent(FileEventKind.REMOVED, "/a"),
        FileEvent(FileEventKind.OVERFLOW, "/"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        record(1, b"early"),
        READY + READY,
        READY + record(8, b"a"),
        READY + record(1),
        READY + record(1, b""),
        READY + record(1, b"/etc/passwd"),
        READY + record(1, b"a/../../b"),
        READY + record(1, b"a//b"),
        READY + record(1, b"a\0b"),
        READY + record(1, b"a", 2),
        READY + record(1, b"a" * 5000),
        READY + record(4, b"a"),
        READY + record(4, b"a", 0, b"../b"),
        READY + struct.pack("<I", 1 << 20),
        READY + struct.pack("<I", 3) + b"xyz",
    ],
    ids=range(15),
)
def test_what_no_watch_sends_is_refused(wrong: bytes) -> None:
    with pytest.raises(GuestMisbehaved):
        WatchDecoder("/src").feed(wrong)


@given(st.binary(max_size=400))
def test_nothing_else_is_raised_for_any_bytes(data: bytes) -> None:
    decoder = WatchDecoder("/src")
    try:
        decoder.feed(data)
    except GuestMisbehaved:
        return
    assert len(decoder._rest) <= 16 * 1024 + 4
