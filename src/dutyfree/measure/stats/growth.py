"""How time grows with length, where two arms take equally long, and what a length takes that nobody measured.

The model is the paper's first equation: a fixed part, and a part for each action. It is fitted to the means at the
lengths that were measured, by relative distance, so that a short trajectory counts for as much as a long one.
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
"""By block: what its trials took in all, in milliseconds, and how many they are."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Completed trials of one arm by length, shortest first, everything else equal."""

    condition: Condition
    """With the longest length."""
    by_length: Mapping[int, Blocks]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Those that were measured."""
        return tuple(self.by_length)

    def blocks(self, lengths: Iterable[int] | None = None) -> int:
        """The fewest at any of these lengths (without any: at all): no interval is surer than its weakest part."""
        return min((len(self.by_length[each]) for each in lengths or self.lengths), default=0)

    def doubts(self, lengths: Iterable[int] | None = None) -> tuple[Caveat, ...]:
        """Whether the means at these lengths (without any: at all) stand on few blocks, or on stragglers."""
        sums = (np.array([*self.by_length[each].values()], dtype=np.float64) for each in lengths or self.lengths)
        return tuple(dict.fromkeys(chain.from_iterable(caveats.of_mean(each[:, 0] / each[:, 1]) for each in sums)))

    def means_ms(self) -> Values:
        """At each length."""
        totals = (map(sum, zip(*each.values(), strict=True)) for each in self.by_length.values())
        return np.array([total / count for total, count in totals])

    def resampled_ms(self, seed: int, beside: Lengths | None = None) -> Values:
        """Means over blocks drawn anew, resamples x lengths.

        Two arms beside each other are drawn alike, so that what a block did to both cancels out in a difference.
        """
        columns = []
        for length, blocks in self.by_length.items():
            others = {} if beside is None else beside.by_length.get(length, {})
            table = np.array([blocks.get(block, (0.0, 0)) for block in sorted({*blocks, *others})], dtype=np.float64)
            columns.append(resampled_means(table[:, :1], table[:, 1:], seed, stream=length)[:, 0])
        return np.column_stack(columns)

    def shared_with(self, other: Lengths) -> Lengths:
        """What is left where the other has no trial."""
        shared = {
            length: kept
            for length, blocks in self.by_length.items()
            if (kept := {block: blocks[block] for block in blocks.keys() & other.by_length.get(length, {}).keys()})
        }
        return replace(self, by_length=shared)


def by_length(trials: Mapping[Condition, Sequence[Trial]]) -> tuple[Lengths, ...]:
    """Completed trials, those together that differ in length alone, in the order in which they come."""
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
    """Of one length alone, with what its trials took outside of their actions as that of a trajectory of none."""
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
    """A caveat of all that follows from the line, where there is none to speak of."""
    misfit = worst_misfit(measured)
    return (caveats.not_a_line(misfit),) if misfit > caveats.MISFIT_LIMIT else ()


def crossovers(measured: Sequence[Lengths], seed: int, examined: Examined) -> tuple[Crossover, ...]:
    """Of every two arms that have two lengths in common."""
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
    """What the mean at each measured length, of which there are two, contributes to the mean at this one.

    A length that was measured is its own mean. Between two it lies on the line between them. Outside of them it is the
    nearest one's mean, and for each action more or less the slope of the fitted line.
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

    if (line_of(one) - line_of(other)).sum() > 0:  # at length 1 the other is ahead
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
    # An end at length 1 is one, too: the one that is faster above it may be so from the start.
    doubts += [caveats.may_not_cross()] if blocks >= LEAST_BLOCKS and (high is None or low == 1.0) else []
    means = tuple(dict.fromkeys((*one.doubts(), *other.doubts())))
    return Crossover(setting, *arms, Estimate(at, low, high, blocks, "actions", means), tuple(doubts))


def _meeting(gap: Values) -> Values:
    """Where a gap that begins below zero is closed; infinite if it never is."""
    fixed, per_action = gap
    with np.errstate(divide="ignore", invalid="ignore"):
        met: Values = np.where(per_action > 0, -fixed / per_action, np.inf)
    return met


def _fit(measured: Lengths) -> Values:
    """The matrix that makes (fixed, per action) of the means at each length: least squares of relative distances."""
    scale = _relative(measured.means_ms())
    design = np.column_stack([np.ones(len(scale)), np.array(measured.lengths, dtype=np.float64)]) * scale[:, None]
    fitted: Values = np.linalg.pinv(design) * scale
    return fitted


def _relative(means_ms: Values) -> Values:
    """What makes a distance a relative one; a time of nothing at all counts as a nanosecond."""
    return 1 / np.maximum(means_ms, 1 / NS_PER_MS)


def _apart_from_arm(measured: Lengths) -> Setting:
    return replace(Setting.of(measured.condition), length=1)
