"""What an analysis finds, as values: every time is in milliseconds, every number carries its caveats.

`Estimate.caveats` are doubts about that one number (no bound, few sandboxes); `caveats` of a finding hold for every
number in it (failures, drift, an emulated processor); those of the `Analysis` hold for the whole study. A reader who
shows a number shows all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.results.records import TrialOutcome
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.metrics import Metric
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase

Factor = Literal["length", "warmth", "concurrency"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A condition without its arm: within a setting, arms can be compared."""

    workload: str
    length: int = 1
    warmth: Warmth = Warmth.COLD
    concurrency: int = 1

    @classmethod
    def of(cls, condition: Condition) -> Setting:
        """The setting in which the condition's arm was tried."""
        return cls(condition.workload, condition.length, condition.warmth, condition.concurrency)

    def on(self, arm: str) -> Condition:
        """This setting, tried on an arm."""
        return Condition(arm, self.workload, self.length, self.warmth, self.concurrency)


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one condition, over the trials that completed. Nothing was trimmed."""

    condition: Condition
    metric: Metric
    n: int
    """Sandboxes."""
    p50: Estimate
    p95: Estimate
    p99: Estimate
    mean: Estimate
    least: float
    most: float
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Failures:
    """How many trials of one condition did not complete, why, and how often that is to be expected."""

    condition: Condition
    attempted: int
    failed: int
    rate: Estimate
    """Unit "share": between 0 and 1."""
    by_outcome: Mapping[TrialOutcome, int]
    """Every outcome, the completed ones included; adds up to `attempted`."""
    by_cause: Mapping[str, int]
    """The most frequent causes, most frequent first; the rest is under "other causes"."""
    by_phase: Mapping[str, int] = field(default_factory=dict)
    """Where the failed ones failed; "" where that is not known."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the baseline's value a condition's is: above 1 is slower.

    Geometric mean. Of one setting's arms: over the blocks in which both completed (`paired`). Of a warm stage against
    cold: over all blocks of either.
    """

    metric: Metric
    condition: Condition
    baseline: Condition
    ratio: Estimate
    """Unit "x"."""
    cliffs_delta: float
    """Probability that a sandbox of `condition` is slower than one of `baseline`, minus the reverse: -1 to 1."""
    paired: bool
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Composition:
    """Where one condition's time goes: means over trials that completed; the parts add up to the whole."""

    condition: Condition
    n: int
    wall_ms: float
    by_phase_ms: Mapping[Phase, float]
    """Every phase that took any time, in the order of the life of a sandbox, `unattributed` last."""
    tax_share: Estimate
    """Unit "share": 1 - execution / whole, of the means."""
    caveats: tuple[Caveat, ...] = ()

    def share(self, phase: Phase) -> float:
        """The part of the whole that this phase has, between 0 and 1."""
        return self.by_phase_ms.get(phase, 0.0) / self.wall_ms if self.wall_ms else 0.0


@dataclass(frozen=True, slots=True)
class KindTax:
    """The actions of one kind in one condition."""

    condition: Condition
    kind: ActionKind
    n: int
    """Sandboxes in which there was one."""
    actions: int
    latency: Estimate
    """Median over sandboxes of the sandbox's median, as are the next."""
    tax: Estimate
    dispatch_ms: float
    """Mean over sandboxes of the sandbox's mean: the three add up to the mean latency."""
    execute_ms: float
    observe_ms: float
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Time between two of the substrate's own boundaries, "create/pull" for instance."""

    condition: Condition
    name: str
    n: int
    p50: Estimate
    mean_ms: float
    """Over all trials that completed, those without this step included, so that steps can be added up."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether a condition's trials became slower or faster while the study ran."""

    condition: Condition
    n: int
    """Blocks."""
    change: Estimate
    """Relative change from this condition's first trial to its last; unit "share", below 0 is faster."""
    p_value: float
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Residue:
    """How much of the trials' time no span covers; shares between 0 and 1."""

    condition: Condition
    n: int
    median: float
    most: float
    over_limit: int
    """Trials whose residue is over 2 % of them."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Growth:
    """One arm's time by length: fixed + length x per action, fitted to the means at the lengths that were measured."""

    condition: Condition
    """With the longest length that was measured."""
    lengths: tuple[int, ...]
    fixed: Estimate
    per_action: Estimate
    worst_misfit: float
    """Largest relative distance between the line and a mean that was measured."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Crossover:
    """The length at which two arms take equally long: below it `short_arm` is faster, above it `long_arm`."""

    setting: Setting
    """With the longest length that was measured on both."""
    short_arm: str
    """Where they do not cross: the faster one."""
    long_arm: str
    """Where they do not cross: the slower one."""
    length: Estimate | None
    """Unit "actions"; None where the lines do not cross at any length from 1 to 10,000."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Floor:
    """What the instrument itself takes, measured on the null substrate. It is shown, and subtracted from nothing."""

    condition: Condition
    n: int
    action: Estimate
    """Median latency of an action that does nothing."""
    trajectory: Estimate
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One step along a factor."""

    at: int | Warmth
    summary: Summary


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one arm along one factor, everything else equal; points in ascending order of the factor."""

    metric: Metric
    along: Factor
    condition: Condition
    """That of the first point."""
    points: tuple[SeriesPoint, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is found in a study. Lists are in the order of the study's arms and grids."""

    study: str
    arms: tuple[str, ...]
    """Without the null substrate's."""
    baseline: str | None
    """The arm that `ratios` compare with; None if there is but one."""
    floor_arm: str | None
    trials: int
    planned: int
    resamples: int
    seed: int
    summaries: tuple[Summary, ...] = ()
    failures: tuple[Failures, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    """Every arm against the baseline, in each setting, paired by block."""
    warmth_ratios: tuple[Ratio, ...] = ()
    """Every warm stage against cold, on the same arm."""
    compositions: tuple[Composition, ...] = ()
    kinds: tuple[KindTax, ...] = ()
    steps: tuple[Step, ...] = ()
    drifts: tuple[Drift, ...] = ()
    residues: tuple[Residue, ...] = ()
    growths: tuple[Growth, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    floors: tuple[Floor, ...] = ()
    caveats: tuple[Caveat, ...] = ()

    def summary(self, condition: Condition, metric: Metric) -> Summary | None:
        """That of exactly this condition."""
        return next((each for each in self.summaries if (each.condition, each.metric) == (condition, metric)), None)

    def settings(self) -> tuple[Setting, ...]:
        """All that were tried, each once."""
        return tuple(dict.fromkeys(Setting.of(each.condition) for each in self.failures))

    def series(self, metric: Metric, along: Factor, *, least: int = 2) -> tuple[Series, ...]:
        """Conditions that differ in this factor alone, where there are at least so many."""
        lines: dict[Condition, list[SeriesPoint]] = {}
        for each in self.summaries:
            if each.metric is metric:
                point = SeriesPoint(getattr(each.condition, along), each)
                lines.setdefault(_without(each.condition, along), []).append(point)
        return tuple(
            Series(metric, along, ordered[0].summary.condition, ordered)
            for points in lines.values()
            if len(points) >= least
            for ordered in [tuple(sorted(points, key=lambda point: _rank(point.at)))]
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values only; keys are the fields' names."""
        told: dict[str, Any] = _plain(asdict(self))
        return told


def _without(condition: Condition, along: Factor) -> Condition:
    blank: dict[Factor, Condition] = {
        "length": replace(condition, length=0),
        "warmth": replace(condition, warmth=Warmth.COLD),
        "concurrency": replace(condition, concurrency=0),
    }
    return blank[along]


def _rank(at: int | Warmth) -> int:
    return list(Warmth).index(at) if isinstance(at, Warmth) else at


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value
