"""In which order a pool prepares the sandboxes of one announcement when not all of them fit. Pure.

An announcement lists states with counts, such as ten of A, ten of B and ten of C. Its requests may come in order (all
of A, then all of B) or in turn (A, B, C, A, B, C ...), also at random, which is in turn on average. A pool that is too
small for all of them can be right for one of the two only, so it learns from the requests which one it is:

- At first, three quarters of the places are filled in order, the others in turn. In order is what callers are asked to
  announce; the others are enough for the first requests if they come in turn.
- Each request for the first open entry makes it more likely that they come in order.
- A request for another entry means that they come in turn, until several requests in a row were in order again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from dutyfree.pool.state import State

AT_FIRST: Final = 12
"""The requests in a row that are assumed before the first one: three quarters of the places are filled in order."""
OUT_OF_ORDER: Final = -2
"""The value after a request out of order. In turn, one request of each round is for the first open entry: that one
alone must not count as an order."""
_HALF: Final = 4
"""After this many requests in a row, half of the places are filled in order."""


class Entry(NamedTuple):
    """One entry of an announcement: a state, the requests that were announced for it, and those that have arrived."""

    state: State
    announced: int
    arrived: int = 0


def in_order_share(in_a_row: int) -> float:
    """The share of the places that is filled in order, after this many requests in a row that came in order."""
    return max(0, in_a_row) / (max(0, in_a_row) + _HALF)


def spread(entries: Sequence[Entry], places: int, in_a_row: int) -> Iterator[tuple[State, int]]:
    """All sandboxes that are still expected, as states with counts, in the order in which to prepare them.

    Of the first `places` sandboxes, a part is in the order of the entries, and the others are in turn. Those that do
    not fit follow, in the order of the entries.
    """
    left = [each.announced - each.arrived for each in entries]
    places = max(0, min(places, sum(left)))
    in_order = math.ceil(places * in_order_share(in_a_row)) if len(entries) > 1 else places
    in_turn = places - in_order
    for number, each in enumerate(entries):
        if count := min(left[number], in_order):
            left[number] -= count
            in_order -= count
            yield each.state, count
    yield from _in_turn(entries, left, in_turn)
    yield from ((each.state, count) for each, count in zip(entries, left, strict=True) if count)


def _in_turn(entries: Sequence[Entry], left: list[int], places: int) -> Iterator[tuple[State, int]]:
    """The next `places` sandboxes in turn, which are taken from `left`.

    The n-th of m requests for an entry is expected when n / m of all requests have come. So an entry with twice as many
    requests has two turns while another one has one.
    """
    if not places:
        return

    def turn(number: int) -> tuple[float, int]:
        announced = entries[number].announced
        return (announced - left[number] + 0.5) / announced, number

    turns = [turn(number) for number in range(len(entries)) if left[number]]
    heapify(turns)
    for _ in range(places):
        _, number = turns[0]
        left[number] -= 1
        yield entries[number].state, 1
        if left[number]:
            heapreplace(turns, turn(number))
        else:
            heappop(turns)
