"""A pool at one moment, for people and their tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dutyfree.pool.metrics import Metrics
from dutyfree.pool.roster import Roster

_PREFIX: Final = "dutyfree_pool"
Family = tuple[str, str, str, list[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Counts, and what they were since the pool was opened."""

    substrate: str
    policy: str
    limit: int
    idle: int
    returned: int
    leased: int
    waiting: int
    works: Mapping[str, int]
    """Under way, by kind."""
    idle_by_rung: Mapping[str, int]
    acquires: Mapping[str, int]
    """By the rung on which a sandbox was found: `hit`, a lower one, or `cold`."""
    hit_rate: float | None
    readiness_p50_ms: float | None
    readiness_p95_ms: float | None
    readiness_total_ms: float
    saved_s: float
    """Readiness that nobody had to wait for."""
    idle_sandbox_s: Mapping[str, float]
    """What it cost: seconds that sandboxes have waited, by rung."""
    outcomes: Mapping[str, Any]
    """Of acquires: how they ended, and why."""
    failures: Mapping[str, int]
    """Of works, by kind and error."""
    destroyed: Mapping[str, int]
    """By reason."""
    lost: int
    expired: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def prometheus(self) -> str:
        """The same as Prometheus reads it."""
        return prometheus([({}, self)])

    def families(self) -> Iterator[Family]:
        """What Prometheus is told: name, kind and meaning of each metric, and its values with their labels."""
        gauges = (("idle", self.idle), ("returned", self.returned), ("leased", self.leased))
        yield "sandboxes", "gauge", "Sandboxes by what they do.", [({"state": key}, value) for key, value in gauges]
        yield "limit", "gauge", "Sandboxes that there may be.", [({}, self.limit)]
        yield "waiting", "gauge", "Requests that wait.", [({}, self.waiting)]
        yield "works", "gauge", "Works under way.", _labelled("kind", self.works)
        yield "acquires_total", "counter", "Leases by the rung that was found.", _labelled("rung", self.acquires)
        yield (
            "readiness_seconds_total",
            "counter",
            "Time from request to sandbox.",
            [({}, self.readiness_total_ms / 1e3)],
        )
        yield "saved_seconds_total", "counter", "Readiness that was not waited for.", [({}, self.saved_s)]
        yield "idle_seconds_total", "counter", "Sandbox-seconds of waiting.", _labelled("rung", self.idle_sandbox_s)
        endings = _labelled("ending", self.outcomes["kinds"])
        yield "outcomes_total", "counter", "How acquires ended.", endings
        yield "work_failures_total", "counter", "Works that failed.", _labelled("cause", self.failures)
        yield "destroyed_total", "counter", "Sandboxes that plans have ended.", _labelled("reason", self.destroyed)
        yield "lost_total", "counter", "Sandboxes that died by themselves.", [({}, self.lost)]
        yield "expired_total", "counter", "Leases that nobody renewed.", [({}, self.expired)]


def prometheus(pools: Sequence[tuple[Mapping[str, str], PoolStatus]]) -> str:
    """Several pools as Prometheus reads them, each with labels of its own."""
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


def summarise(
    setting: tuple[str, str, int], roster: Roster, metrics: Metrics, waiting: int, now_s: float
) -> PoolStatus:
    """The status of a pool; `setting` is its substrate, its policy and how many sandboxes it may have."""
    rungs: Counter[str] = Counter()
    for each in roster.all_idle:
        rungs[roster.member(each.sandbox).wanted.ladder.name_of(each.state)] += 1
    substrate, policy, limit = setting
    return PoolStatus(
        substrate=substrate,
        policy=str(policy),
        limit=limit,
        idle=rungs.total(),
        returned=len(roster.returned),
        leased=roster.leased,
        waiting=waiting,
        works=dict(Counter(str(work.kind) for work in roster.works)),
        idle_by_rung=dict(rungs),
        acquires=dict(metrics.acquires),
        hit_rate=metrics.hit_rate,
        readiness_p50_ms=metrics.readiness_ms(0.5),
        readiness_p95_ms=metrics.readiness_ms(0.95),
        readiness_total_ms=metrics.readiness_total_ms,
        saved_s=metrics.saved_s,
        idle_sandbox_s=roster.idle_s(now_s),
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
