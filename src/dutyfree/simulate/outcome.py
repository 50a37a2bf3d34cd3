"""The outcome of a simulation: counted while it runs, and one value when it is over."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

HIT: Final = "hit"
"""The rung of requests that found an idle sandbox in the wanted state, as in a pool's metrics."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of many durations."""

    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    most_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarise values; without any, all fields are 0."""
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        p50, p95, p99 = (quantile(ordered, p) for p in (0.5, 0.95, 0.99))
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p95, p99, ordered[-1])

    def to_json(self) -> dict[str, float]:
        """The fields, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def quantile(ordered: Sequence[float], p: float) -> float:
    """The median-unbiased quantile of sorted values, at least one."""
    rank = (len(ordered) + 1 / 3) * p + 1 / 3
    low = min(max(math.floor(rank), 1), len(ordered))
    high = min(low + 1, len(ordered))
    weight = min(max(rank - low, 0.0), 1.0)
    return ordered[low - 1] + weight * (ordered[high - 1] - ordered[low - 1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one policy under a load."""

    policy: str
    nodes: int
    trajectories: int
    completed: int
    failures: Mapping[str, int]
    """Trajectories that ended without a result, by cause."""
    readiness: Summary
    """The time from a request to a sandbox in the wanted state."""
    queue: Summary
    """The part of the readiness before an operation for the request began."""
    hits: Mapping[str, int]
    """Requests by what the router found for them: `hit`, a lower rung, or `cold` if nothing."""
    operations: Mapping[str, int]
    """What pools did: `create`, `promote`, `demote`, `reset`, and destructions by their reasons."""
    lost: Mapping[str, int]
    """Operations of pools that failed, by kind."""
    idle_s: float
    """Sandbox-seconds without a tenant: the waste."""
    leased_s: float
    """Sandbox-seconds of leases."""
    worker_hours: float
    """The time from request to end, added up over all trajectories."""
    makespan_s: float
    """The time from the start to the end of the last trajectory."""
    most_sandboxes: int
    """The most sandboxes on one node at one moment."""
    most_busy: int
    """The most creations, promotions and resets that one node had in progress at one moment."""
    events: int
    plans: int

    @property
    def hit_rate(self) -> float:
        """The share of requests that found an idle sandbox in the wanted state."""
        return self.hits.get(HIT, 0) / max(1, sum(self.hits.values()))

    @property
    def waste(self) -> float:
        """Idle sandbox-seconds as a share of idle and leased ones together."""
        whole_s = self.idle_s + self.leased_s
        return self.idle_s / whole_s if whole_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """All fields and rates, for JSON."""
        content: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            content[name] = value.to_json() if isinstance(value, Summary) else value
            if isinstance(value, Mapping):
                content[name] = dict(sorted(value.items()))
        return content | {"hit_rate": self.hit_rate, "waste": self.waste}


@dataclass(slots=True)
class Tally:
    """Counts while a simulation runs, over all of its nodes."""

    readiness_s: array[float] = field(default_factory=lambda: array("d"))
    queue_s: array[float] = field(default_factory=lambda: array("d"))
    hits: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    completed: int = 0
    idle_s: float = 0.0
    leased_s: float = 0.0
    trajectories_s: float = 0.0
    makespan_s: float = 0.0
    most_sandboxes: int = 0
    most_busy: int = 0
    plans: int = 0

    def outcome(self, policy: str, nodes: int, events: int) -> Outcome:
        """The outcome of the whole simulation."""
        return Outcome(
            policy=policy,
            nodes=nodes,
            trajectories=self.completed + self.failures.total(),
            completed=self.completed,
            failures=dict(self.failures),
            readiness=Summary.of(self.readiness_s),
            queue=Summary.of(self.queue_s),
            hits=dict(self.hits),
            operations=dict(self.operations),
            lost=dict(self.lost),
            idle_s=self.idle_s,
            leased_s=self.leased_s,
            worker_hours=self.trajectories_s / 3600,
            makespan_s=self.makespan_s,
            most_sandboxes=self.most_sandboxes,
            most_busy=self.most_busy,
            events=events,
            plans=self.plans,
        )
