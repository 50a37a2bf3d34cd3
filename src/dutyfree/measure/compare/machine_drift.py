"""How much of a difference between two runs the machine itself may explain. Pure.

Two runs that were not interleaved saw the machine at different times, and no number of trials removes a drift between
them. The reference (`run.reference`) was measured before every block of both, and shows how the machine changed. How
closely a metric follows the reference is not known, so both ends are computed: the difference as it was measured, and
the difference less `FOLLOWS` times the change of the reference. A difference counts only if it stands at both ends.

Both ends come from batches of consecutive blocks, because neighbouring blocks see the same machine: a t-test on single
blocks would take a machine that wanders within a run for many independent values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FOLLOWS: Final = 1.5
"""A metric is assumed to change by 0 to 1.5 times the change of the reference (of logarithms)."""
BATCHES: Final = 12
LEAST_BATCHES: Final = 4
NOTHING: Final = 1e-12
"""A smaller difference of logarithms is an error of rounding."""
_TAIL: Final = 0.975

ByBlock = Mapping[int, float]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Unexplained:
    """The part of a shift of logarithms that drift of the machine does not explain."""

    value: float
    """The possible shift that is nearest to 0; 0 if the shifts at both ends differ in sign."""
    low: float
    high: float
    """The interval that contains the 95 % intervals of both ends."""
    p_value: float
    """The larger one of both ends; 1 if they differ in sign."""


def unexplained(
    before: ByBlock, after: ByBlock, machine: tuple[ByBlock, ByBlock], *, paired: bool
) -> Unexplained | None:
    """The shift from `before` to `after`, by block, that `machine`, the references of both runs, does not explain.

    All values are logarithms. `paired`: equal block numbers mean equal trajectories. None if there are too few blocks,
    or no reference in some part of a run.
    """
    if paired:
        differences = {block: after[block] - before[block] for block in before.keys() & after.keys()}
        ours, theirs = (_levels(differences, reference) for reference in machine)
    else:
        ours, theirs = (_levels(*side) for side in zip((before, after), machine, strict=True))
    if ours is None or theirs is None:
        return None
    ends = []
    for weight in (0.0, FOLLOWS):
        if paired:
            change = theirs.reference - ours.reference
            ends.append(_mean_shift([theirs.own - weight * change], theirs.own.mean() - weight * change.mean()))
        else:
            sides = [side.own - weight * side.reference for side in (ours, theirs)]
            ends.append(_mean_shift(sides, sides[1].mean() - sides[0].mean()))
    low, high = min(value - reach for value, reach, _ in ends), max(value + reach for value, reach, _ in ends)
    values = [value for value, _, _ in ends]
    if min(values) < 0 < max(values):
        return Unexplained(0.0, low, high, 1.0)
    return Unexplained(min(values, key=abs), low, high, max(p_value for _, _, p_value in ends))


def machine_change(before: ByBlock, after: ByBlock) -> tuple[float, float, float] | None:
    """The shift of the reference itself, with its 95 % interval; None as above."""
    ours, theirs = (_levels(side, side) for side in (before, after))
    if ours is None or theirs is None:
        return None
    sides = [ours.reference, theirs.reference]
    value, reach, _ = _mean_shift(sides, sides[1].mean() - sides[0].mean())
    return value, value - reach, value + reach


class _Levels(NamedTuple):
    """The levels of consecutive batches of blocks, of a metric and of the reference."""

    own: Values
    reference: Values


def _levels(values: ByBlock, reference: ByBlock) -> _Levels | None:
    """The levels of the values, and of the references from each batch's first to last block.

    References of other conditions' blocks in between count, too: they saw the same machine. Values may have stragglers,
    so their level is the median; a reference is a median already, and a mean of those varies less.
    """
    blocks = np.array(sorted(values))
    number = min(BATCHES, len(blocks) // 2)
    if number < LEAST_BATCHES:
        return None
    measured = np.array(sorted(reference))
    levels: list[tuple[float, float]] = []
    for batch in np.array_split(blocks, number):
        near = measured[np.searchsorted(measured, batch[0]) : np.searchsorted(measured, batch[-1], side="right")]
        if not len(near):
            return None
        own = float(np.median([values[int(block)] for block in batch]))
        levels.append((own, float(np.mean([reference[int(block)] for block in near]))))
    return _Levels(*np.array(levels).T)


def _mean_shift(samples: Sequence[Values], shift: float) -> tuple[float, float, float]:
    """The shift, how far its 95 % interval reaches to either side, and its p-value.

    The shift is the mean of one sample (Student's test), or the difference of the means of two (Welch's).
    """
    parts = [float(each.var(ddof=1)) / len(each) for each in samples]
    spread = sqrt(sum(parts))
    if spread < NOTHING:
        return float(shift), 0.0, 0.0 if abs(shift) > NOTHING else 1.0
    freedom = sum(parts) ** 2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, samples, strict=True))
    reach = float(stats.t.ppf(_TAIL, freedom)) * spread
    return float(shift), reach, float(2 * stats.t.sf(abs(shift) / spread, freedom))
