"""The status of a pool at one moment, for people and for tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeVar

from dutyfree.pool.core import PoolCore
from dutyfree.pool.goal import Goal
from dutyfree.values import dataclass

G = TypeVar("G", bound=Goal)
_PREFIX: Final = "dutyfree_pool"
Family = tuple[str, str, str, list[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The sandboxes and requests of a pool now, and its counters since it was opened."""

    substrate: str
    policy: str
    limit: int
    idle: int
    returned: int
    leased: int
    waiting: int
    memory_bytes: int
    disk_bytes: int
    """The expected disk space of all sandboxes, like `memory_bytes` from earlier sandboxes in the same states."""
    operations: Mapping[str, int]
    """Operations in progress, by kind."""
    idle_by_rung: Mapping[str, int]
    acquires: Mapping[str, int]
    """Leases by the rung on which a sandbox was found: `hit`, a lower one, or `cold`."""
    hit_rate: float | None
    readiness_p50_ms: float | None
    readiness_p95_ms: float | None
    readiness_total_ms: float
    saved_s: float
    """The waiting time that warm sandboxes have saved."""
    idle_sandbox_s: Mapping[str, float]
    """The price of that: the seconds that sandboxes were idle, by rung."""
    outcomes: Mapping[str, Any]
    """How acquires ended, and why."""
    failures: Mapping[str, int]
    """Failed operations, by kind and error."""
    destroyed: Mapping[str, int]
    """Sandboxes that the planner has destroyed, by reason."""
    lost: int
    expired: int
    builds: Mapping[str, int] = field(default_factory=dict)
    """Announced recipes that are being built or wait for it, by announcement and stages."""
    build_errors: Mapping[str, str] = field(default_factory=dict)
    """Announced recipes that could not be built, and why, by announcement and stages."""

    def prometheus(self) -> str:
        """The status in Prometheus' text format."""
        return prometheus([({}, self)])

    def families(self) -> Iterator[Family]:
        """The metrics for Prometheus: name, kind and meaning of each, and its values with their labels."""
        gauges = (("idle", self.idle), ("returned", self.returned), ("leased", self.leased))
        yield "sandboxes", "gauge", "Sandboxes by state.", [({"state": key}, value) for key, value in gauges]
        yield "limit", "gauge", "The limit on the number of sandboxes.", [({}, self.limit)]
        yield "waiting", "gauge", "Waiting requests.", [({}, self.waiting)]
        yield "operations", "gauge", "Operations in progress.", _labelled("kind", self.operations)
        yield "builds", "gauge", "Announced recipes to build.", [({}, sum(self.builds.values()))]
        yield "build_errors", "gauge", "Announced recipes that failed.", [({}, len(self.build_errors))]
        sizes: list[tuple[dict[str, str], float]] = [
            ({"kind": "memory"}, self.memory_bytes),
            ({"kind": "disk"}, self.disk_bytes),
        ]
        yield "expected_bytes", "gauge", "Memory and disk that the sandboxes are expected to take.", sizes
        yield "acquires_total", "counter", "Leases by the rung that was found.", _labelled("rung", self.acquires)
        yield (
            "readiness_seconds_total",
            "counter",
            "Time from request to sandbox.",
            [({}, self.readiness_total_ms / 1e3)],
        )
        yield "saved_seconds_total", "counter", "Waiting time that warm sandboxes have saved.", [({}, self.saved_s)]
        yield (
            "idle_seconds_total",
            "counter",
            "Seconds that sandboxes were idle.",
            _labelled("rung", self.idle_sandbox_s),
        )
        endings = _labelled("ending", self.outcomes["kinds"])
        yield "outcomes_total", "counter", "How acquires ended.", endings
        yield "operation_failures_total", "counter", "Operations that failed.", _labelled("cause", self.failures)
        yield (
            "destroyed_total",
            "counter",
            "Sandboxes that the planner has destroyed.",
            _labelled("reason", self.destroyed),
        )
        yield "lost_total", "counter", "Sandboxes that died without a command of the pool.", [({}, self.lost)]
        yield "expired_total", "counter", "Leases that have expired.", [({}, self.expired)]


def prometheus(pools: Sequence[tuple[Mapping[str, str], PoolStatus]]) -> str:
    """The status of several pools in Prometheus' text format, each with its own labels."""
    lines: dict[str, list[str]] = {}
    for own, status in pools:
        common = {**own, "substrate": status.substrate, "policy": status.policy}
        for name, kind, meaning, values in status.families():
            full = f"{_PREFIX}_{name}"
            family = lines.setdefault(full, [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"])
            for labels, value in values:
                shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**common, **labels}.items())
                family.append(f"{full}{{{shown}}} {value:.10g}")
    return "".join(f"{line}\n" for family in lines.values() for line in family)


def summarise(substrate: str, core: PoolCore[G], now_s: float) -> PoolStatus:
    """The status of a pool over this substrate."""
    members, metrics, limits = core.members, core.metrics, core.options.limits
    rungs: Counter[str] = Counter()
    for each in members.all_idle:
        rungs[members.member(each.sandbox).goal.ladder.name_of(each.state)] += 1
    total = members.total_size
    return PoolStatus(
        substrate=substrate,
        policy=str(core.options.policy),
        limit=limits.sandboxes,
        idle=rungs.total(),
        returned=len(members.returned),
        leased=members.leased,
        waiting=len(core.queue),
        memory_bytes=total.memory_bytes,
        disk_bytes=total.disk_bytes,
        operations=dict(Counter(str(operation.kind) for operation in members.operations)),
        idle_by_rung=dict(rungs),
        acquires=dict(metrics.acquires),
        hit_rate=metrics.hit_rate,
        readiness_p50_ms=metrics.readiness_ms(0.5),
        readiness_p95_ms=metrics.readiness_ms(0.95),
        readiness_total_ms=metrics.readiness_total_ms,
        saved_s=metrics.saved_s,
        idle_sandbox_s=members.idle_s(now_s),
        outcomes=metrics.outcomes.as_dict(),
        failures={f"{kind} {cause}": count for (kind, cause), count in metrics.failures.items()},
        destroyed=dict(metrics.destroyed),
        lost=metrics.lost,
        expired=metrics.expired,
    )


def _labelled(label: str, values: Mapping[str, float]) -> list[tuple[dict[str, str], float]]:
    return [({label: name}, value) for name, value in sorted(values.items())]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
