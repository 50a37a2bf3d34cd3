"""Quantiles with distribution-free intervals. Nothing is trimmed; the only assumption is that sandboxes are alike.

The interval's ends are order statistics, chosen by the binomial distribution of how many values lie below the true
quantile. Intervals that end at whole ranks cover more than 95 %, because ranks are discrete; so each end is
interpolated between two neighbouring order statistics with the weight of Nyblom (1992), which for the median is that of
Hettmansperger & Sheather (1986).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc
from scipy.stats import rankdata

from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.estimate import Estimate

ERROR: Final = 0.05
"""The share of intervals that may miss the true value."""
LEAST_WAVES: Final = 6
"""Fewer waves do not show how much waves differ."""

Values = NDArray[np.float64]


class Ranks(NamedTuple):
    """The ranks of an interval's ends in the sorted sample (1 is the smallest; fractional); None: beyond the sample."""

    low: float | None
    high: float | None


def quantile(values: Sequence[float] | Values, p: float, unit: str, blocks: Sequence[int] | None = None) -> Estimate:
    """The p-quantile of a sample that is not empty, with its interval and its caveats.

    `blocks` gives the wave of each value: values of one wave are correlated, so that the sample is effectively smaller.
    """
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    doubts = [caveats.few_sandboxes(n)] if n < caveats.FEW_SANDBOXES else []
    effective = n
    if blocks is not None and (waves := len(set(blocks))) < n:
        if waves < LEAST_WAVES:
            doubts.append(caveats.few_waves(waves))
        else:
            effective = effective_size(sample, np.asarray(blocks))
            doubts += [caveats.clustered(n, effective)] if effective < 0.9 * n else []
    if effective < (needed := least_size(p)):
        doubts.append(caveats.no_bound(f"p{100 * p:g}", effective, needed))
    ordered = np.sort(sample)

    def end(rank: float | None) -> float | None:
        return None if rank is None else at_rank(ordered, rank * (n + 1) / (effective + 1))

    ranks = bound_ranks(effective, p)
    return Estimate(at_rank(ordered, point_rank(n, p)), end(ranks.low), end(ranks.high), n, unit, tuple(doubts))


def point_rank(n: int, p: float) -> float:
    """The rank of the point estimate: median-unbiased whatever the distribution (type 8 of Hyndman & Fan, 1996)."""
    return min(max((n + 1 / 3) * p + 1 / 3, 1.0), float(n))


@lru_cache(maxsize=64)
def least_size(p: float) -> int:
    """The smallest sample that bounds the p-quantile from both sides: 6 for p50, 59 for p95, 299 for p99."""
    n = 1
    while (ranks := bound_ranks(n, p)).low is None or ranks.high is None:
        n += 1
    return n


@lru_cache(maxsize=4096)
def bound_ranks(n: int, p: float) -> Ranks:
    """The ends of the 95 % interval for the p-quantile in a sample of n.

    Each end misses in 2.5 % of cases if the sample is large enough. For an extreme quantile, the true value lies beyond
    the last value more often than that; then the other end gets the rest of the 5 %. If more than 5 % lie beyond, there
    is no bound on the side of the tail, and the other end is a one-sided 95 % bound.
    """
    above, below = p**n, (1 - p) ** n  # probability that the whole sample lies on one side of the quantile
    if n >= 1 and above + below <= ERROR:
        miss_above = min(max(ERROR / 2, above), ERROR - below)
        return Ranks(_low_rank(n, p, ERROR - miss_above), n + 1 - _low_rank(n, 1 - p, miss_above))
    if n < 1 or p == 0.5 or min(above, below) > ERROR * (1 + 1e-9):  # 1 - 0.95 is a bit more than 0.05
        return Ranks(None, None)
    return Ranks(_low_rank(n, p, ERROR), None) if p > 0.5 else Ranks(None, n + 1 - _low_rank(n, 1 - p, ERROR))


def _low_rank(n: int, p: float, miss: float) -> float:
    """The rank that lies above the p-quantile with probability `miss`."""
    sure = bdtrc(np.arange(n + 1), n, p)  # probability that the value of rank 1, 2, ... is not above the quantile
    wanted = 1 - miss
    rank = int(np.searchsorted(-sure, -wanted, side="right"))  # the last rank with at least the wanted probability
    if rank < 1:
        return 1.0
    if rank == n:
        return float(n)
    surplus, deficit = sure[rank - 1] - wanted, wanted - sure[rank]
    weight = (n - rank) * p * surplus
    return rank + float(weight / (weight + rank * (1 - p) * deficit)) if weight > 0 else float(rank)


def at_rank(ordered: Values, rank: float) -> float:
    """The value at a rank, by linear interpolation; ranks beyond the ends give the ends."""
    rank = min(max(rank, 1.0), float(len(ordered)))
    below = math.floor(rank)
    above = min(below + 1, len(ordered))
    low, high = float(ordered[below - 1]), float(ordered[above - 1])
    return low if low == high else low + (rank - below) * (high - low)


def effective_size(values: Values, blocks: NDArray[np.int64]) -> int:
    """How many independent values would be worth as much: n / (1 + (values per block - 1) x correlation within blocks).

    The correlation comes from a one-way analysis of variance of the ranks, so that outliers do not dominate it.
    """
    n = len(values)
    _, member, sizes = np.unique(blocks, return_inverse=True, return_counts=True)
    groups = len(sizes)
    ranks = rankdata(values)  # equal values get equal ranks, independent of their wave
    means = np.bincount(member, ranks) / sizes
    between = float(np.sum(sizes * (means - ranks.mean()) ** 2)) / (groups - 1)
    within = float(np.sum((ranks - means[member]) ** 2)) / (n - groups)
    squares = float(np.sum(sizes**2)) / n
    spread = between + ((n - squares) / (groups - 1) - 1) * within
    correlation = (between - within) / spread if spread > 0 else 0.0
    return max(1, int(n / max(1.0, 1 + (squares - 1) * correlation)))
