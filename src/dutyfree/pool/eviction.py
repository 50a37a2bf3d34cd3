"""Who makes room when there is none: greedy-dual (FaasCache, ASPLOS'21).

What would be missed least goes first, and the clock moves to what it was worth. Whoever becomes idle after that begins
at the new clock, so that what was worth much once, and was not used since, is overtaken in the end. The clock is one
number that the pool keeps: plans read it in `PlannerInput.clock` and `Idle.clock`, and move it by `Destroy.clock`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dutyfree.pool.planner_input import Limits
from dutyfree.pool.size import Size


@dataclass(frozen=True, slots=True)
class Evictable:
    """A sandbox that could go."""

    sandbox: str
    priority: float
    size: Size


def priority(clock: float, frequency: int, rebuild_s: float, share: float) -> float:
    """What keeping a sandbox is worth: `clock` is the pool's of when it became idle, `share` what it takes."""
    return clock + frequency * rebuild_s / share


def share(size: Size, limits: Limits) -> float:
    """How many sandboxes' part of the pool one of this size takes, of whatever it takes most of: 1 or more."""
    parts = 1.0
    if limits.memory_bytes:
        parts = max(parts, limits.sandboxes * size.memory_bytes / limits.memory_bytes)
    if limits.disk_bytes:
        parts = max(parts, limits.sandboxes * size.disk_bytes / limits.disk_bytes)
    return parts


def in_order(candidates: Iterable[Evictable]) -> list[Evictable]:
    """Who would be missed least comes first; of equals, the one named first."""
    return sorted(candidates, key=lambda each: (each.priority, each.sandbox))
