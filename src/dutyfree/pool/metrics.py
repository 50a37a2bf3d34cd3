"""The counters of a pool and its latest readiness times, in bounded space."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.pool.outcomes import Outcome, OutcomeKind, Outcomes
from dutyfree.pool.planner_input import OperationKind

_KEPT: Final = 4096
"""The number of readiness times that are kept: enough for a p99 of recent requests."""
_GRANTED: Final = Outcome(OutcomeKind.OBSERVATION)
HIT: Final = "hit"
"""The rung of a request that found an idle sandbox in exactly the wanted state."""


class Metrics:
    """Counters of one pool, from its opening on."""

    def __init__(self) -> None:
        self.acquires: Counter[str] = Counter()
        """By the rung on which a sandbox was found: `HIT`, the name of a lower rung, or `cold`."""
        self.outcomes = Outcomes()
        """How acquires ended."""
        self.failures: Counter[tuple[OperationKind, str]] = Counter()
        """Failed operations, by kind and by the name of the error's class."""
        self.destroyed: Counter[str] = Counter()
        """Sandboxes that the planner has destroyed, by reason."""
        self.lost = 0
        """Sandboxes that died without a command of the pool."""
        self.expired = 0
        """Leases that have expired."""
        self.saved_s = 0.0
        """Waiting time that warm sandboxes have saved: the expected time of a creation less the actual wait."""
        self._readiness_ms: deque[float] = deque(maxlen=_KEPT)
        self.readiness_total_ms = 0.0

    def acquired(self, rung: str, readiness_ms: float, saved_s: float) -> None:
        """Count a granted request, whose sandbox was ready `readiness_ms` after the request came."""
        self.acquires[rung] += 1
        self.outcomes.count(_GRANTED)
        self._readiness_ms.append(readiness_ms)
        self.readiness_total_ms += readiness_ms
        self.saved_s += saved_s

    def failed(self, kind: OperationKind, error: DutyfreeError) -> None:
        """Count a failed operation."""
        self.failures[kind, type(error).__name__] += 1

    @property
    def hit_rate(self) -> float | None:
        """The share of requests that found a sandbox in exactly the wanted state; None before the first request."""
        total = self.acquires.total()
        return self.acquires[HIT] / total if total else None

    def readiness_ms(self, quantile: float) -> float | None:
        """A quantile of the latest readiness times; None before the first."""
        ordered = sorted(self._readiness_ms)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else None
