"""The findings of a comparison, as values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Condition
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.metrics import Metric


class Verdict(StrEnum):
    """The verdict on a difference. Only a difference that passes both gates counts."""

    FASTER = "faster"
    SLOWER = "slower"
    CHANGED = "changed, cause unknown"
    """It differs, but the runs were not interleaved, and the machine may have changed as much. Not a regression."""
    CANNOT_TELL = "cannot tell"
    FAILS_LESS = "fails less"
    FAILS_MORE = "fails more"


@dataclass(frozen=True, slots=True)
class Gates:
    """A difference must be both significant and large enough to matter."""

    significance: float = 0.01
    """p, after correction for the number of comparisons, must be below this."""
    effect: float = 0.05
    """Relative; the time must differ by more than this."""
    failure_effect: float = 0.01
    """Failure rates must differ by more than this, as a share of all trials."""

    def __post_init__(self) -> None:
        if not 0 < self.significance < 1:
            raise InvalidRequest(f"significance is {self.significance:g}; it must lie between 0 and 1")
        if not self.effect >= 0 or not self.failure_effect >= 0:
            raise InvalidRequest("the size of an effect must not be negative")


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of one condition, before and after."""

    condition: Condition
    metric: Metric
    verdict: Verdict
    before: Estimate
    """The medians. The ratio below is not their quotient, but the typical ratio of trials."""
    after: Estimate
    ratio: Estimate
    """Unit "x": after / before, above 1 is slower (Hodges & Lehmann's estimate).

    If the runs were not interleaved, the interval also contains what remains when drift of the machine is removed.
    """
    unexplained: float
    """The ratio nearest to 1 that drift of the machine leaves; equal to the ratio if the trials were interleaved."""
    p_value: float
    adjusted_p: float
    """After Benjamini & Hochberg, over everything that was compared."""
    drift_p: float | None
    """The adjusted p-value if drift of the machine explains as much as it can; 1 if no reference shows how much.

    None: the trials were interleaved, and drift is in both sides.
    """
    cliffs_delta: float
    """-1 to 1; above 0: slower after."""
    paired: bool
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureDifference:
    """How often trials of one condition fail, before and after."""

    condition: Condition
    verdict: Verdict
    before: Estimate
    after: Estimate
    p_value: float
    adjusted_p: float
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All conditions and metrics that both results have."""

    gates: Gates
    paired: bool
    """Whether trials could be paired, because both results come from the same plan."""
    differences: tuple[Difference, ...]
    failures: tuple[FailureDifference, ...]
    lost: tuple[Condition, ...] = ()
    """Conditions in which trials completed before and none after: not run, or all failed."""
    only_before: tuple[Condition, ...] = ()
    """Not run after."""
    only_after: tuple[Condition, ...] = ()
    interleaved: bool = False
    """Whether both sides were measured in the same blocks of one study."""
    machine: Estimate | None = None
    """Unit "x": how much slower the machine's reference was after; None if interleaved, or not measured in both."""
    caveats: tuple[Caveat, ...] = ()

    def regressions(self, threshold: float | None = None) -> tuple[Difference | FailureDifference, ...]:
        """Everything that became slower by more than `threshold` (default: by any reported effect), or fails more.

        Raises InvalidRequest for a threshold below the effect of the gates, because smaller effects are not reported.
        """
        if threshold is not None and threshold < self.gates.effect:
            raise InvalidRequest(
                f"a slowdown of {threshold:.3%} is not reported: effects are reported from {self.gates.effect:.3%} on"
            )
        least = 1 + (self.gates.effect if threshold is None else threshold)
        slower = (each for each in self.differences if each.verdict is Verdict.SLOWER and each.unexplained > least)
        return (*slower, *(each for each in self.failures if each.verdict is Verdict.FAILS_MORE))

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)
