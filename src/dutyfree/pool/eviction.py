"""Which sandbox is destroyed when a new one finds no room: greedy-dual (FaasCache, ASPLOS'21).

The sandbox with the lowest priority is evicted, and the pool's eviction clock moves to that priority. A sandbox that
becomes idle later starts from the new clock value. So a sandbox that once had a high priority, and was not used since,
is overtaken by newer ones and evicted in the end. The clock is one number, which the pool keeps: the planner reads it
in `PlannerInput.clock` and `Idle.clock`, and moves it by `Destroy.clock`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dutyfree.pool.planner_input import Limits
from dutyfree.pool.size import Size
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Evictable:
    """A sandbox that may be evicted."""

    sandbox: str
    priority: float
    size: Size


def priority(clock: float, frequency: int, rebuild_s: float, share: float) -> float:
    """The priority of a sandbox: the seconds of waiting that it saves, for each part of the pool that it takes.

    `clock` is the eviction clock when it became idle, `frequency` the number of recorded requests for its state, and
    `share` the result of the function of that name.
    """
    return clock + frequency * rebuild_s / share


def share(size: Size, limits: Limits) -> float:
    """How many average sandboxes this one takes the place of, at least 1.

    An average sandbox has `memory_bytes / sandboxes` of memory and `disk_bytes / sandboxes` of disk. Of the two parts
    the larger one counts, because that resource fills the pool first.
    """
    parts = 1.0
    if limits.memory_bytes:
        parts = max(parts, limits.sandboxes * size.memory_bytes / limits.memory_bytes)
    if limits.disk_bytes:
        parts = max(parts, limits.sandboxes * size.disk_bytes / limits.disk_bytes)
    return parts


def in_order(candidates: Iterable[Evictable]) -> list[Evictable]:
    """The candidates in the order of eviction: lowest priority first, then by id, so that plans are reproducible."""
    return sorted(candidates, key=lambda each: (each.priority, each.sandbox))
