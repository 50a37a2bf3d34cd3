"""Drawing trajectories. Pure: the same workload, length and seed give the same actions on every machine, for ever."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads.workload import ActionKind, ScriptedAction, Workload

T = TypeVar("T")


def draw(workload: Workload, length: int, seed: int) -> tuple[ScriptedAction, ...]:
    """`length` actions: the opening, then draws from the menu, first of a kind by the mix, then of one of that kind.

    The draw depends only on the workload's name, the seed and the position, so that a shorter trajectory is the
    beginning of a longer one. Raises InvalidRequest for a length below 1, and for one past the opening of a workload
    that has no menu.
    """
    if length < 1:
        raise InvalidRequest(f"a trajectory has at least one action, not {length}")
    if length > len(workload.opening) and not workload.menu:
        hint = f"a trajectory of it has at most {len(workload.opening)} actions"
        raise InvalidRequest(f"workload {workload.name!r} has no menu to draw {length} actions from", hint=hint)
    shares = [(kind, share) for kind, share in sorted(workload.mix.items())]
    offered = {kind: [(each, each.weight) for each in workload.menu if each.kind is kind] for kind in ActionKind}
    actions = list(workload.opening[:length])
    chances = _chances(f"{workload.name}\0{seed}")
    while len(actions) < length:
        kind = _chosen(shares, next(chances))
        actions.append(_chosen(offered[kind], next(chances)))
    return tuple(actions)


def _chances(key: str) -> Iterator[float]:
    """Numbers from [0, 1), from a hash, because the sequences of `random` may change with the version of Python."""
    count = 0
    while True:
        digest = hashlib.sha256(f"{key}\0{count}".encode()).digest()
        yield int.from_bytes(digest[:8], "big") / 2**64
        count += 1


def _chosen(weighted: Sequence[tuple[T, float]], chance: float) -> T:
    ends = list(accumulate(weight for _, weight in weighted))
    index = bisect_right(ends, chance * ends[-1])
    return weighted[min(index, len(weighted) - 1)][0]
