"""What a pool has done: counters, and the last readiness times. Everything is bounded."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.pool.costs import Costs
from dutyfree.pool.ladders import Wanted
from dutyfree.pool.outcomes import Outcome, OutcomeKind, Outcomes
from dutyfree.pool.routing import COLD_RUNG
from dutyfree.pool.tenancy import Grant
from dutyfree.pool.view import Kind

_KEPT: Final = 4096
"""Readiness times: enough for a p99, of what happened lately."""
HIT: Final = "hit"
"""The rung of a request that found just what it wanted."""


class Metrics:
    """Counters of one pool, from its opening on."""

    def __init__(self) -> None:
        self.acquires: Counter[str] = Counter()
        """By the rung on which a sandbox was found: `HIT`, the name of a lower one, or `cold`."""
        self.outcomes = Outcomes()
        """Of acquires."""
        self.failures: Counter[tuple[Kind, str]] = Counter()
        """Of works, by their kind and the error's name."""
        self.destroyed: Counter[str] = Counter()
        """By the planner, for its reason."""
        self.lost = 0
        """Sandboxes that died by themselves."""
        self.expired = 0
        """Leases that nobody renewed."""
        self.saved_s = 0.0
        """Readiness that was not waited for: what a creation costs here, less what was waited."""
        self._readiness_ms: deque[float] = deque(maxlen=_KEPT)
        self.readiness_total_ms = 0.0

    def acquired(self, grant: Grant, wanted: Wanted, costs: Costs, *, images: bool) -> None:
        """Somebody has got a sandbox."""
        self.acquires[grant.rung] += 1
        self.outcomes.count(Outcome(OutcomeKind.OBSERVATION))
        self._readiness_ms.append(grant.readiness_ms)
        self.readiness_total_ms += grant.readiness_ms
        if grant.rung != COLD_RUNG:
            cold_s = costs.rebuild_s(wanted.ladder.top, images=images)
            self.saved_s += max(0.0, cold_s - grant.readiness_ms / 1000)

    def failed(self, kind: Kind, error: DutyfreeError) -> None:
        """A work has failed."""
        name = type(error).__name__
        self.failures[kind, name] += 1

    @property
    def hit_rate(self) -> float | None:
        """The share of those who found just what they wanted; None before anybody came."""
        total = self.acquires.total()
        return self.acquires[HIT] / total if total else None

    def readiness_ms(self, quantile: float) -> float | None:
        """A quantile of the last times from request to sandbox; None before there are any."""
        ordered = sorted(self._readiness_ms)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else None
