"""Which node runs a group of rollouts. Pure: the loads of the nodes go in, the choice comes out.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018). The search for a recipe always begins
at the same node, so that its layers and sandboxes are warm there. It skips nodes with more than their share of the
load, so that a popular recipe spreads over as many nodes as it needs and no more. The rollouts of one prompt stay on
one node while there is room, because they share an image.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import Final

BOUND: Final = 1.25
"""The search skips a node whose load is more than this many times the mean."""
POINTS: Final = 64
"""The number of points of each node on the ring. With more points, the shares of the nodes are more even."""
REMEMBERED: Final = 4096
"""The most keys whose walk is cached."""


class Ring:
    """Nodes at hashed points on a ring. Adding or removing a node moves only the keys next to its points."""

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
        """Every node once, in the order of the ring, beginning at the hash of the key."""
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
    """The node of each rollout in a group of `size`. `total` is the sum of `loads`; `room` is the capacity of a node.

    The group goes to the first node on the walk whose load, with one rollout more, is within `bound` times the mean.
    When that node is full, the search goes on for the remaining rollouts. If all nodes are full, these wait at the
    first node within the bound.
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
    # At least one node is within the bound, because not all nodes can be above the mean.
    assert first is not None
    return chosen + [first] * (size - len(chosen))


def least_loaded(loads: Sequence[int], size: int) -> list[int]:
    """The node of each rollout: the one with the least load at that moment, whatever image the rollout needs."""
    now = list(loads)
    chosen = []
    for _ in range(size):
        node = now.index(min(now))
        now[node] += 1
        chosen.append(node)
    return chosen


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
