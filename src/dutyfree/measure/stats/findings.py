"""The findings of an analysis, as values: every time is in milliseconds, every number carries its caveats.

`Estimate.caveats` are doubts about that one number (no bound, few sandboxes); `caveats` of a finding hold for every
number in it (failures, drift, an emulated processor); those of the `Analysis` hold for the whole study. Code that
shows a number must show all three.
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
        """The setting of a condition."""
        return cls(condition.workload, condition.length, condition.warmth, condition.concurrency)

    def on(self, arm: str) -> Condition:
        """The condition of an arm in this setting."""
        return Condition(arm, self.workload, self.length, self.warmth, self.concurrency)


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one condition, over the trials that completed. Nothing was trimmed."""

    condition: Condition
    metric: Metric
    n: int
    """The number of sandboxes."""
    p50: Estimate
    p95: Estimate
    p99: Estimate
    mean: Estimate
    least: float
    most: float
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Failures:
    """How many trials of one condition did not complete, why, and the failure rate with its interval."""

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
    """Failed trials by the phase in which they failed; "" if the phase is not known."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Ratio:
    """A condition's value divided by the baseline's: above 1 is slower.

    The ratio is a geometric mean. Two arms in one setting are compared over the blocks in which both completed
    (`paired`); a warm stage and cold, over all blocks of each.
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
    """Unit "share": 1 - mean execution / mean whole."""
    caveats: tuple[Caveat, ...] = ()

    def share(self, phase: Phase) -> float:
        """This phase's share of the whole, between 0 and 1."""
        return self.by_phase_ms.get(phase, 0.0) / self.wall_ms if self.wall_ms else 0.0


@dataclass(frozen=True, slots=True)
class KindTax:
    """The actions of one kind in one condition."""

    condition: Condition
    kind: ActionKind
    n: int
    """The number of sandboxes that ran such an action."""
    actions: int
    latency: Estimate
    """The median over sandboxes of each sandbox's median; the next ones likewise."""
    tax: Estimate
    dispatch_ms: float
    """The mean over sandboxes of each sandbox's mean: the three add up to the mean latency."""
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
    """Over all completed trials, including those without this step, so that steps can be added up."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """Whether a condition's trials became slower or faster while the study ran."""

    condition: Condition
    n: int
    """The number of blocks."""
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
    """The number of trials with a residue above 2 %."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Growth:
    """One arm's time by length: fixed + length x per action, fitted to the means at the lengths that were measured."""

    condition: Condition
    """The condition with the longest measured length."""
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
    """The condition with the longest length that was measured on both arms."""
    short_arm: str
    """If they do not cross: the faster arm."""
    long_arm: str
    """If they do not cross: the slower arm."""
    length: Estimate | None
    """Unit "actions"; None where the lines do not cross at any length from 1 to 10,000."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Floor:
    """The instrument's own time, measured on the null substrate. It is shown, and never subtracted."""

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
    """The condition of the first point."""
    points: tuple[SeriesPoint, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """All findings of a study. Lists are in the order of the study's arms and grids."""

    study: str
    arms: tuple[str, ...]
    """Without the null arm."""
    baseline: str | None
    """The arm that `ratios` compare with; None if there is only one arm."""
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
        """The summary of exactly this condition; None if there is none."""
        return next((each for each in self.summaries if (each.condition, each.metric) == (condition, metric)), None)

    def settings(self) -> tuple[Setting, ...]:
        """All settings that were tried, each once."""
        return tuple(dict.fromkeys(Setting.of(each.condition) for each in self.failures))

    def series(self, metric: Metric, along: Factor, *, least: int = 2) -> tuple[Series, ...]:
        """Series of conditions that differ only in this factor; series with fewer than `least` points are left out."""
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
        content: dict[str, Any] = _plain(asdict(self))
        return content


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
