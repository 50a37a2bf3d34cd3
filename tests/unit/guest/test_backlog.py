"""The backlog: a queue that keeps order and merges neighbours."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dutyfree.guest.backlog import Backlog

pieces = st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=20))


def merged(items: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    groups = itertools.groupby(items, key=lambda item: item[0])
    return [(stream, b"".join(data for _, data in group)) for stream, group in groups]


@given(st.lists(st.one_of(pieces, st.none()), max_size=60))
def test_everything_comes_out_once_and_in_order(steps: list[tuple[int, bytes] | None]) -> None:
    backlog = Backlog()
    put, taken = [], []
    for step in steps:
        if step is not None:
            put.append(step)
            backlog.put(*step)
        elif backlog:
            taken.append(backlog.take())
    while backlog:
        taken.append(backlog.take())
    assert merged(taken) == merged(put)
    assert len(backlog) == 0


def test_neighbours_of_one_stream_are_one_piece() -> None:
    backlog = Backlog()
    for stream, data in [(1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")]:
        backlog.put(stream, data)
    assert len(backlog) == 4
    assert [backlog.take() for _ in range(3)] == [(1, b"ab"), (2, b"c"), (1, b"d")]
