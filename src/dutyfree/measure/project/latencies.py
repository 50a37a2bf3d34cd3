"""The time of one trajectory on each arm: measured by a study, or stated by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import Warmth
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats import caveats, doubts
from dutyfree.measure.stats.bootstrap import percentile_interval
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.examined import choose_workload, examine
from dutyfree.measure.stats.growth import Lengths, Values, bent, by_length, split, weights_at

MS_PER_S = 1_000.0


class Latencies(Protocol):
    """The input of a projection, in seconds. Means, because a total is the number times the mean, tails included."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that can be projected."""

    @property
    def source(self) -> str:
        """Where the latencies come from, as text."""

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """The caveats of all latencies."""

    def mean_s(self, arm: str, steps: int) -> float:
        """The mean time of a trajectory of this length."""

    def at(self, arm: str, steps: int) -> Estimate:
        """The mean with its interval."""

    def gap(self, slow: str, fast: str, steps: int) -> Estimate:
        """The difference between two arms, with its interval."""

    def lengths(self, steps: Sequence[int]) -> Sequence[int]:
        """Those of these lengths for which there are latencies."""


@dataclass(frozen=True)
class StatedLatencies:
    """Stated latencies at one length; the intervals are those of their rounding."""

    by_arm: Mapping[str, float]
    steps: int
    rounded_to_s: float = 0.0
    source: str = "stated latencies"
    caveats: tuple[Caveat, ...] = ()

    def __post_init__(self) -> None:
        for arm, latency_s in self.by_arm.items():
            if not 0 < latency_s < float("inf"):
                raise InvalidRequest(f"the latency of {arm!r} is {latency_s:g} s; it must be positive")

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the given order."""
        return tuple(self.by_arm)

    def mean_s(self, arm: str, steps: int) -> float:
        """Raises InvalidRequest for a length other than that of the latencies."""
        if steps != self.steps:
            raise InvalidRequest(f"the latencies are of {self.steps} steps, and say nothing of {steps}")
        return self.by_arm[arm]

    def at(self, arm: str, steps: int) -> Estimate:
        """Raises InvalidRequest for a length other than that of the latencies."""
        return self._rounded(self.mean_s(arm, steps), self.rounded_to_s / 2)

    def gap(self, slow: str, fast: str, steps: int) -> Estimate:
        """The difference; the rounding errors of both add up."""
        return self._rounded(self.mean_s(slow, steps) - self.mean_s(fast, steps), self.rounded_to_s)

    def lengths(self, steps: Sequence[int]) -> Sequence[int]:
        """The length of the latencies, if it is among `steps`."""
        return [self.steps]

    def _rounded(self, value_s: float, by_s: float) -> Estimate:
        if not by_s:
            return Estimate(value_s, None, None, 0, "s")
        doubt = caveats.rounded(f"known to {self.rounded_to_s:g} s; the interval is that of the rounding")
        return Estimate(value_s, value_s - by_s, value_s + by_s, 0, "s", (doubt,))


class MeasuredLatencies:
    """The mean trajectory times of one workload and warmth in a study, one sandbox at a time."""

    def __init__(self, results: Results, workload: str | None = None, warmth: Warmth | None = None) -> None:
        """The default workload is the one with the longest trajectory, the last of several; the default warmth is cold,
        and in a live run that of the most leases.

        Raises InvalidRequest if there is no completed trial of it.
        """
        warmth = results.main_warmth if warmth is None else warmth
        self._how = "one sandbox at a time" if results.bill is None else "leases of a live run"
        null = {arm.name for arm in results.study.arms if arm.substrate == NULL}
        examined = examine(results)
        serial = [
            each
            for each in by_length(examined.completed)
            if each.condition.concurrency == 1 and each.condition.arm not in null
        ]
        self.workload = choose_workload([each.condition for each in serial], workload, warmth)
        self.warmth = warmth
        self.caveats = tuple(doubts.of_study(results, examined.failures))
        self._seed = results.study.seed
        self._examined = examined
        self._measured = {
            each.condition.arm: each if len(each.lengths) > 1 else split(each, examined.completed[each.condition])
            for each in serial
            if (each.condition.workload, each.condition.warmth) == (self.workload, warmth)
        }
        self._resampled = {arm: each.resampled_ms(self._seed) for arm, each in self._measured.items()}

    @property
    def arms(self) -> tuple[str, ...]:
        """In the order of the study."""
        return tuple(self._measured)

    @property
    def source(self) -> str:
        """Which trials the latencies are the means of."""
        start = self.warmth if self.warmth is Warmth.COLD else f"from a sandbox that was warm at {self.warmth}"
        return f"{self.workload}, {start}, {self._how}"

    def mean_s(self, arm: str, steps: int) -> float:
        """Measured at this length, or else interpolated, or else extrapolated."""
        measured = self._measured[arm]
        return float(weights_at(measured, steps) @ measured.means_ms()) / MS_PER_S

    def at(self, arm: str, steps: int) -> Estimate:
        """With the caveats of the lengths that are used, and one if no length as large, or as small, was measured."""
        measured = self._measured[arm]
        used, blocks = self._used(arm, steps)
        low, high = percentile_interval(self._resampled[arm] @ weights_at(measured, steps) / MS_PER_S, blocks)
        found = [*self._examined.doubts_at(measured.condition, used), *measured.doubts(used)]
        if 0 in used:
            found.append(caveats.one_length(measured.lengths[-1]))
        if beyond := caveats.extrapolated(steps, measured.lengths):
            found += [*beyond, *bent(measured)]
        return Estimate(self.mean_s(arm, steps), low, high, blocks, "s", tuple(found))

    def gap(self, slow: str, fast: str, steps: int) -> Estimate:
        """Blocks that both arms have are resampled together, so that what affected both cancels out."""
        both = self._measured[slow], self._measured[fast]
        value = self.mean_s(slow, steps) - self.mean_s(fast, steps)
        known = dict.fromkeys((*self.at(slow, steps).caveats, *self.at(fast, steps).caveats))
        n = min(self._used(arm, steps)[1] for arm in (slow, fast))

        def drawn(one: Lengths, other: Lengths) -> Values:
            means: Values = one.resampled_ms(self._seed, beside=other) @ weights_at(one, steps)
            return means

        low, high = percentile_interval((drawn(*both) - drawn(*reversed(both))) / MS_PER_S, n)
        return Estimate(value, low, high, n, "s", tuple(known))

    def _used(self, arm: str, steps: int) -> tuple[list[int], int]:
        """The measured lengths that are used for this length, and the fewest blocks of any of them."""
        measured = self._measured[arm]
        weights = weights_at(measured, steps)
        used = [length for length, weight in zip(measured.lengths, weights, strict=True) if weight]
        return used, measured.blocks(used)

    def lengths(self, steps: Sequence[int]) -> Sequence[int]:
        """All of them."""
        return steps
