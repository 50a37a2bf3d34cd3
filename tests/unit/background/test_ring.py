"""The ring of output, against a model that keeps everything."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.background.ring import ALWAYS_KEPT_BYTES, BYTES_PER_SWITCH, LEAST_SWITCHES, Budget, Ring

Stream = Literal["stdout", "stderr"]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
pieces = st.tuples(st.sampled_from(STREAMS), st.binary(max_size=40))


def ring_of(keep_bytes: int, budget_bytes: int = 2**30) -> Ring:
    return Ring(keep_bytes, Budget(budget_bytes))


class Model:
    """All output, each byte with its stream."""

    def __init__(self) -> None:
        self.bytes: list[tuple[Stream, int]] = []

    def put(self, stream: Stream, data: bytes) -> None:
        self.bytes += [(stream, byte) for byte in data]

    def switches(self, start: int) -> int:
        return sum(self.bytes[at - 1][0] != self.bytes[at][0] for at in range(start + 1, len(self.bytes)))


def read_all(ring: Ring, offset: int, limit_bytes: int) -> tuple[list[tuple[Stream, int]], int]:
    """Everything from `offset` on, and how much was lost before it."""
    seen: list[tuple[Stream, int]] = []
    lost = 0
    while (chunk := ring.read(offset, limit_bytes)) is not None:
        assert chunk.data
        assert len(chunk.data) <= limit_bytes
        assert chunk.offset == offset + chunk.lost_bytes
        lost += chunk.lost_bytes
        seen += [(chunk.stream, byte) for byte in chunk.data]
        offset = chunk.end
    return seen, lost


@given(st.lists(pieces, max_size=60), st.integers(1, 100), st.integers(1, 30), st.data())
def test_the_end_of_the_output_is_kept_and_the_rest_is_counted(
    steps: list[tuple[Stream, bytes]], keep_bytes: int, limit_bytes: int, data: st.DataObject
) -> None:
    ring, model = ring_of(keep_bytes), Model()
    for stream, piece in steps:
        ring.put(stream, piece)
        model.put(stream, piece)
        assert ring.end == len(model.bytes)
        assert ring.end - ring.start <= keep_bytes
    assert read_all(ring, 0, limit_bytes) == (model.bytes[ring.start :], ring.start)
    middle = data.draw(st.integers(0, ring.end))
    assert read_all(ring, middle, limit_bytes)[0] == model.bytes[max(middle, ring.start) :]
    # What was dropped had to be dropped: for its size, or for its switches between the streams.
    if ring.start > max(0, ring.end - keep_bytes):
        assert model.switches(ring.start - 1) > max(LEAST_SWITCHES, keep_bytes // BYTES_PER_SWITCH)


@given(st.lists(pieces, max_size=80), st.integers(1, 200))
def test_a_reader_that_keeps_up_loses_nothing(steps: list[tuple[Stream, bytes]], keep_bytes: int) -> None:
    ring, model = ring_of(keep_bytes), Model()
    seen: list[tuple[Stream, int]] = []
    for stream, piece in steps:
        for at in range(0, len(piece), keep_bytes):
            ring.put(stream, piece[at : at + keep_bytes])
            model.put(stream, piece[at : at + keep_bytes])
            more, lost = read_all(ring, len(seen), 64)
            assert lost == 0
            seen += more
    assert seen == model.bytes


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(STREAMS), st.binary(max_size=40)), max_size=25),
    st.integers(0, 9_000),
)
def test_rings_that_share_a_budget_stay_in_it(steps: list[tuple[int, Stream, bytes]], budget_bytes: int) -> None:
    budget = Budget(budget_bytes)
    rings, models = [Ring(20_000, budget) for _ in range(3)], [Model() for _ in range(3)]
    for number, stream, piece in steps:
        rings[number].put(stream, piece * 50)
        models[number].put(stream, piece * 50)
        kept = sum(ring.end - ring.start for ring in rings)
        assert kept <= budget_bytes + len(rings) * ALWAYS_KEPT_BYTES
        assert budget.free_bytes >= 0
    for ring, model in zip(rings, models, strict=True):
        assert read_all(ring, 0, 10_000) == (model.bytes[ring.start :], ring.start)
        assert ring.end - ring.start >= min(ring.end, ALWAYS_KEPT_BYTES)
        ring.clear()
        assert ring.read(0, 10) is None
    assert budget.free_bytes == budget_bytes


def test_without_budget_a_ring_keeps_a_little() -> None:
    ring = ring_of(1_000_000, budget_bytes=0)
    ring.put("stdout", bytes(10_000))
    assert (ring.start, ring.end) == (10_000 - ALWAYS_KEPT_BYTES, 10_000)


@pytest.mark.parametrize("size_bytes", [1, 100])
def test_streams_that_take_turns_cost_little_more_than_one(size_bytes: int) -> None:
    keep_bytes = 32 * 1024
    ring = ring_of(keep_bytes)
    pieces = [("stdout", b"o" * size_bytes), ("stderr", b"e" * size_bytes)]
    tracemalloc.start()
    try:
        for _ in range(keep_bytes // size_bytes):
            for stream, data in pieces:
                ring.put(stream, data)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 3 * keep_bytes
    finally:
        tracemalloc.stop()
    kept = ring.end - ring.start
    assert kept == min(keep_bytes, (keep_bytes // BYTES_PER_SWITCH + 1) * size_bytes)
    chunk = ring.read(ring.start, 1000)
    assert chunk is not None
    assert set(chunk.data) in ({ord("o")}, {ord("e")})


def test_an_empty_ring_is_small() -> None:
    ring = ring_of(1024 * 1024)
    parts = [getattr(ring, name) for name in ("_data", "_switches")]
    assert sum(map(sys.getsizeof, [ring, *parts])) < 400
