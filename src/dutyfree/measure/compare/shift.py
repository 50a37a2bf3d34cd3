"""Tests whether one sample of logarithms is larger than another, and by how much: rank tests, with shift and interval.

Ranks are used because one straggler must not decide; logarithms, because a slowdown is a factor. Paired values:
Wilcoxon's signed-rank test, with the median of the averages of all pairs of differences. Unpaired values: Mann &
Whitney's test, with the median of the differences of all pairs. Estimates and intervals are Hodges & Lehmann's (1963),
so that test, estimate and interval agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MOST: Final = 2_000
"""With more values, only every k-th is used for the shift, because all pairs would not fit into memory."""
EXACT: Final = 50
"""Up to this many pairs, the test's distribution is exact; above, it is approximated."""
_Z: Final = 1.959963984540054

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shift:
    """How much larger the second sample is; the interval's ends are None if there are too few values."""

    value: float
    low: float | None
    high: float | None
    p_value: float


def paired_shift(before: Values, after: Values) -> Shift:
    """The shift of paired values, in the same order."""
    differences = after - before
    n = len(differences)
    p_value = 1.0
    if n > 1 and np.any(differences):
        # With ties there is no exact distribution; scipy would simulate one, which takes seconds.
        tied = len(np.unique(np.abs(differences))) < n or not np.all(differences)
        method = "exact" if n <= EXACT and not tied else "asymptotic"
        p_value = float(stats.wilcoxon(differences, zero_method="zsplit", method=method).pvalue)
    kept = _thinned(differences)
    rows, columns = np.triu_indices(len(kept))
    averages = np.sort((kept[rows] + kept[columns]) / 2)
    m = len(kept)
    return _shift(averages, m * (m + 1) / 4, sqrt(m * (m + 1) * (2 * m + 1) / 24), p_value, enough=n >= 6)


def unpaired_shift(before: Values, after: Values) -> Shift:
    """The shift of values that are not paired."""
    p_value = 1.0
    if np.ptp(np.concatenate([before, after])) > 0:
        p_value = float(stats.mannwhitneyu(after, before, alternative="two-sided").pvalue)
    ours, theirs = _thinned(after), _thinned(before)
    differences = np.sort(np.subtract.outer(ours, theirs).ravel())
    m, n = len(ours), len(theirs)
    return _shift(differences, m * n / 2, sqrt(m * n * (m + n + 1) / 12), p_value, enough=min(m, n) >= 4)


def adjusted(p_values: list[float]) -> list[float]:
    """Benjamini & Hochberg's adjusted p-values: of the differences below a level, at most that share is false.

    If nothing differs, the level is the probability of any false alarm: so a comparison of a hundred metrics has no
    more false alarms than one of a single metric.
    """
    return [float(each) for each in stats.false_discovery_control(p_values)] if p_values else []


def _shift(ordered: Values, centre: float, spread: float, p_value: float, *, enough: bool) -> Shift:
    """The median of all pairs, and the interval of shifts that the test does not reject at 5 %."""
    value = float(np.median(ordered))
    rank = round(centre - _Z * spread)
    if not enough or rank < 1:
        return Shift(value, None, None, p_value)
    return Shift(value, float(ordered[rank - 1]), float(ordered[-rank]), p_value)


def _thinned(values: Values) -> Values:
    return values[:: -(-len(values) // MOST)]
