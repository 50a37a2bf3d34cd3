"""Which node a group of rollouts goes to: pure, over the loads of nodes, for two nodes or for thousands.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018): a recipe always begins its search at
the same node, so that what it needs is warm there, and passes on from nodes that have more than their share, so that a
popular recipe spreads just as far as it must. The rollouts of one prompt stay together for as long as there is room.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import Final

BOUND: Final = 1.25
"""A node may have this many times the mean load before the search passes it."""
POINTS: Final = 64
"""Of each node on the ring: more make shares more even."""
REMEMBERED: Final = 4096
"""Keys whose walk is kept."""


class Ring:
    """Nodes at hashed places around a ring. A node that comes or goes moves only the keys next to it."""

    def __init__(self, nodes: Sequence[str], points: int = POINTS) -> None:
        assert nodes
        self._count = len(nodes)
        placed = sorted(
            (_hash(f"{name}/{point}"), index) for index, name in enumerate(nodes) for point in range(points)
        )
        self._places = [place for place, _ in placed]
        self._nodes = [index for _, index in placed]
        self._walks: dict[str, tuple[int, ...]] = {}

    def walk(self, key: str) -> tuple[int, ...]:
        """Every node once, in the order in which the ring meets them from the key on."""
        found = self._walks.get(key)
        if found is None:
            if len(self._walks) >= REMEMBERED:
                self._walks.clear()
            start = bisect(self._places, _hash(key))
            found = tuple(dict.fromkeys(self._nodes[start:] + self._nodes[:start]))
            self._walks[key] = found
        return found


def with_locality(
    walk: Iterable[int], loads: Sequence[int], room: int, size: int, total: int, bound: float = BOUND
) -> list[int]:
    """The node of each rollout of a group of `size`; `total` is the sum of `loads`, `room` what fits on one node.

    The first node on the walk whose load, with one rollout more, is within `bound` times the mean takes the group,
    until it is full; the search goes on for the rest. Where all are full, the rest waits at the first within the bound.
    """
    allowed = math.ceil(bound * (total + size) / len(loads))
    chosen: list[int] = []
    first = None
    for node in walk:
        load = loads[node]
        if load >= allowed:
            continue
        first = node if first is None else first
        free = room - load
        if free > 0:
            chosen += [node] * min(free, size - len(chosen))
            if len(chosen) == size:
                return chosen
    # Somebody is always within the bound: not all can be above the mean.
    assert first is not None
    return chosen + [first] * (size - len(chosen))


def least_loaded(loads: Sequence[int], size: int) -> list[int]:
    """The node of each rollout, whatever it wants: the one that has least to do at that moment."""
    now = list(loads)
    chosen = []
    for _ in range(size):
        node = now.index(min(now))
        now[node] += 1
        chosen.append(node)
    return chosen


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
