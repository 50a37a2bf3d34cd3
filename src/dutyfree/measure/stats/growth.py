"""How time grows with length: the line of each arm, where two lines cross, and times of lengths that were not measured.

The model is the paper's first equation: a fixed part, and a part for each action. It is fitted to the means at the
measured lengths, by relative distance, so that a short trajectory weighs as much as a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from dutyfree.measure.design.study import MAX_LENGTH, Condition
from dutyfree.measure.results.records import Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.bootstrap import LEAST_BLOCKS, percentile_interval, resampled_means
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.examined import Examined
from dutyfree.measure.stats.findings import Crossover, Growth, Setting
from dutyfree.measure.stats.metrics import NS_PER_MS, UNIT

Values = NDArray[np.float64]
Blocks = Mapping[int, tuple[float, int]]
"""By block: the total time of its trials in milliseconds, and their number."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Completed trials of one arm by length, shortest first, everything else equal."""

    condition: Condition
    """The condition with the longest length."""
    by_length: Mapping[int, Blocks]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The measured lengths."""
        return tuple(self.by_length)

    def blocks(self, lengths: Iterable[int] | None = None) -> int:
        """The fewest blocks at any of these lengths (default: all): an interval is as weak as its weakest part."""
        return min((len(self.by_length[each]) for each in lengths or self.lengths), default=0)

    def doubts(self, lengths: Iterable[int] | None = None) -> tuple[Caveat, ...]:
        """Caveats of the means at these lengths (default: all): few blocks, or stragglers."""
        sums = (np.array([*self.by_length[each].values()], dtype=np.float64) for each in lengths or self.lengths)
        return tuple(dict.fromkeys(chain.from_iterable(caveats.of_mean(each[:, 0] / each[:, 1]) for each in sums)))

    def means_ms(self) -> Values:
        """The mean at each length."""
        totals = (map(sum, zip(*each.values(), strict=True)) for each in self.by_length.values())
        return np.array([total / count for total, count in totals])

    def resampled_ms(self, seed: int, beside: Lengths | None = None) -> Values:
        """Means over resampled blocks: resamples x lengths.

        With `beside`, both arms use the same draw, so that what affected both in a block cancels out in a difference.
        """
        columns = []
        for length, blocks in self.by_length.items():
            others = {} if beside is None else beside.by_length.get(length, {})
            table = np.array([blocks.get(block, (0.0, 0)) for block in sorted({*blocks, *others})], dtype=np.float64)
            columns.append(resampled_means(table[:, :1], table[:, 1:], seed, stream=length)[:, 0])
        return np.column_stack(columns)

    def shared_with(self, other: Lengths) -> Lengths:
        """Only the lengths and blocks in which the other arm has trials, too."""
        shared = {
            length: kept
            for length, blocks in self.by_length.items()
            if (kept := {block: blocks[block] for block in blocks.keys() & other.by_length.get(length, {}).keys()})
        }
        return replace(self, by_length=shared)


def by_length(trials: Mapping[Condition, Sequence[Trial]]) -> tuple[Lengths, ...]:
    """Group completed trials that differ only in length, in the order of the conditions."""
    found: dict[Condition, dict[int, Blocks]] = {}
    for condition, completed in trials.items():
        if completed:
            sums = _sums(completed, lambda trial: trial.wall_ns)
            found.setdefault(replace(condition, length=1), {})[condition.length] = sums
    return tuple(
        Lengths(replace(condition, length=max(sums)), {length: sums[length] for length in sorted(sums)})
        for condition, sums in found.items()
    )


def split(measured: Lengths, completed: Sequence[Trial]) -> Lengths:
    """For a single measured length: add the time outside of actions as the time of a trajectory of length 0."""
    around = _sums(completed, lambda trial: trial.wall_ns - sum(action.latency_ns for action in trial.actions))
    return replace(measured, by_length={0: around, **measured.by_length})


def _sums(trials: Sequence[Trial], time_ns: Callable[[Trial], int]) -> Blocks:
    sums: dict[int, tuple[float, int]] = {}
    for trial in trials:
        total_ms, count = sums.get(trial.block, (0.0, 0))
        sums[trial.block] = (total_ms + time_ns(trial) / NS_PER_MS, count + 1)
    return sums


def growth(measured: Lengths, seed: int, examined: Examined) -> Growth | None:
    """The line through one arm's means; None where a single length was measured."""
    if len(measured.lengths) < 2:
        return None
    fit, blocks = _fit(measured), measured.blocks()
    line, lines = fit @ measured.means_ms(), measured.resampled_ms(seed) @ fit.T
    fixed, per_action = (
        Estimate(float(value), *percentile_interval(values, blocks), blocks, UNIT, measured.doubts())
        for value, values in zip(line, lines.T, strict=True)
    )
    doubts = (*bent(measured), *examined.doubts_at(measured.condition, measured.lengths))
    return Growth(measured.condition, measured.lengths, fixed, per_action, worst_misfit(measured), doubts)


def worst_misfit(measured: Lengths) -> float:
    """The largest relative distance between the line and a mean."""
    means = measured.means_ms()
    fixed, per_action = _fit(measured) @ means
    return float(np.max(np.abs(fixed + per_action * np.array(measured.lengths) - means) * _relative(means)))


def bent(measured: Lengths) -> tuple[Caveat, ...]:
    """A caveat if the means do not lie on a line."""
    misfit = worst_misfit(measured)
    return (caveats.not_a_line(misfit),) if misfit > caveats.MISFIT_LIMIT else ()


def crossovers(measured: Sequence[Lengths], seed: int, examined: Examined) -> tuple[Crossover, ...]:
    """The crossover of every two arms that have two lengths in common."""
    found = []
    for one, other in combinations(measured, 2):
        if _apart_from_arm(one) == _apart_from_arm(other):
            one, other = one.shared_with(other), other.shared_with(one)
            if len(one.lengths) > 1:
                crossing = _crossover(one, other, seed)
                known = (examined.doubts_at(each.condition, each.lengths) for each in (one, other))
                doubts = dict.fromkeys((*crossing.caveats, *chain.from_iterable(known)))
                found.append(replace(crossing, caveats=tuple(doubts)))
    return tuple(found)


def weights_at(measured: Lengths, length: int) -> Values:
    """The weight of each measured length's mean in the mean at `length`. There are at least two measured lengths.

    A measured length uses its own mean. Between two measured lengths, the mean is interpolated. Beyond them, it is the
    nearest one's mean, plus or minus the slope of the fitted line for each action.
    """
    lengths = measured.lengths
    weights = np.zeros(len(lengths))
    if lengths[0] <= length <= lengths[-1]:
        after = max(1, int(np.searchsorted(lengths, length)))
        share = (length - lengths[after - 1]) / (lengths[after] - lengths[after - 1])
        weights[after - 1 : after + 1] = 1 - share, share
    else:
        nearest = 0 if length < lengths[0] else -1
        weights[nearest] = 1.0
        weights += (length - lengths[nearest]) * _fit(measured)[1]
    return weights


def _crossover(one: Lengths, other: Lengths, seed: int) -> Crossover:
    def line_of(measured: Lengths) -> Values:
        return _fit(measured) @ measured.means_ms()

    if (line_of(one) - line_of(other)).sum() > 0:  # at length 1 the other arm is faster
        one, other = other, one
    blocks = one.blocks()
    setting = replace(Setting.of(one.condition), length=one.lengths[-1])
    arms = (one.condition.arm, other.condition.arm)
    at = float(_meeting(line_of(one) - line_of(other)))
    if at > MAX_LENGTH:
        return Crossover(setting, *arms, length=None)
    gaps = one.resampled_ms(seed) @ _fit(one).T - other.resampled_ms(seed) @ _fit(other).T
    low, high = percentile_interval(_meeting(gaps.T), blocks)
    low = None if low is None else max(low, 1.0)
    high = None if high is None or high > MAX_LENGTH else high
    doubts = [*caveats.extrapolated(at, one.lengths), *bent(one), *bent(other)]
    # A crossing at length 1 is open on the left: the arm that is faster above it may be faster from the start.
    doubts += [caveats.may_not_cross()] if blocks >= LEAST_BLOCKS and (high is None or low == 1.0) else []
    means = tuple(dict.fromkeys((*one.doubts(), *other.doubts())))
    return Crossover(setting, *arms, Estimate(at, low, high, blocks, "actions", means), tuple(doubts))


def _meeting(gap: Values) -> Values:
    """The length at which a gap that is negative at length 1 reaches zero; infinite if it never does."""
    fixed, per_action = gap
    with np.errstate(divide="ignore", invalid="ignore"):
        met: Values = np.where(per_action > 0, -fixed / per_action, np.inf)
    return met


def _fit(measured: Lengths) -> Values:
    """The matrix that maps the means at each length to (fixed, per action): least squares of relative distances."""
    scale = _relative(measured.means_ms())
    design = np.column_stack([np.ones(len(scale)), np.array(measured.lengths, dtype=np.float64)]) * scale[:, None]
    fitted: Values = np.linalg.pinv(design) * scale
    return fitted


def _relative(means_ms: Values) -> Values:
    """The factors that make distances relative; a mean of zero counts as one nanosecond."""
    return 1 / np.maximum(means_ms, 1 / NS_PER_MS)


def _apart_from_arm(measured: Lengths) -> Setting:
    return replace(Setting.of(measured.condition), length=1)
