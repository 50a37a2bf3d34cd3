"""Intervals that say 95 % hold the truth in 93 to 97 of 100 studies, drawn from distributions that are known.

Thousands of studies are drawn at once, as the columns or rows of one array, so that all of it takes seconds.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

from dutyfree.measure.compare.shift import paired_shift, unpaired_shift
from dutyfree.measure.stats.bootstrap import expanded_tail, resampled_means
from dutyfree.measure.stats.conditions import means_by_block
from dutyfree.measure.stats.metrics import Metric
from dutyfree.measure.stats.quantiles import at_rank, bound_ranks, quantile
from dutyfree.measure.stats.rates import wilson
from dutyfree.measure.stats.ratios import paired_ratios

NOMINAL = (0.93, 0.97)
STUDIES = 8_000
TRUTH_SIZE = 1_000_000


def latencies(numbers: np.random.Generator, shape: tuple[int, ...], shape_name: str) -> np.ndarray:
    """As latencies are: lognormal, with stragglers; or much worse than that."""
    if shape_name == "exponential":
        return numbers.exponential(1.0, shape)
    values = numbers.lognormal(0.0, 0.15, shape)
    stragglers = numbers.random(shape) < 0.02
    return np.where(stragglers, values * (1 + numbers.exponential(1.25, shape)), values)


@cache
def everyone(shape_name: str) -> np.ndarray:
    """So many that what is found in them is the truth."""
    return np.sort(latencies(np.random.default_rng(0), (TRUTH_SIZE,), shape_name))


def at_ranks(ordered: np.ndarray, rank: float) -> np.ndarray:
    """`at_rank` of every row."""
    below = int(rank)
    above = min(below + 1, ordered.shape[1])
    return ordered[:, below - 1] + (rank - below) * (ordered[:, above - 1] - ordered[:, below - 1])


@pytest.mark.parametrize("shape_name", ["latencies", "exponential"])
@pytest.mark.parametrize(
    ("p", "n"),
    [(0.5, 6), (0.5, 12), (0.5, 30), (0.5, 100), (0.95, 59), (0.95, 65), (0.95, 100), (0.99, 299), (0.99, 400)],
)
def test_the_interval_of_a_quantile_covers_it(p: float, n: int, shape_name: str) -> None:
    numbers = np.random.default_rng(n)
    truth = float(everyone(shape_name)[round(p * TRUTH_SIZE)])
    studies = np.sort(latencies(numbers, (STUDIES if n < 200 else STUDIES // 2, n), shape_name), axis=1)
    ranks = bound_ranks(n, p)
    assert ranks.low is not None
    assert ranks.high is not None
    covered = (at_ranks(studies, ranks.low) <= truth) & (truth <= at_ranks(studies, ranks.high))
    assert NOMINAL[0] <= covered.mean() <= NOMINAL[1]
    shown = quantile(studies[0], p, "ms")
    assert shown.low == pytest.approx(at_rank(studies[0], ranks.low))


@pytest.mark.parametrize(("p", "n"), [(0.95, 20), (0.95, 58), (0.99, 100)])
def test_a_tail_that_is_not_bounded_from_above_is_from_below(p: float, n: int) -> None:
    numbers = np.random.default_rng(n)
    studies = np.sort(numbers.random((STUDIES, n)), axis=1)
    ranks = bound_ranks(n, p)
    assert ranks.high is None
    assert ranks.low is not None
    assert NOMINAL[0] <= (at_ranks(studies, ranks.low) <= p).mean() <= NOMINAL[1]


@pytest.mark.parametrize("waves", [6, 12, 24])
def test_sandboxes_of_one_wave_count_for_less(waves: int) -> None:
    """Half of the variance is the wave's: an interval that took all values for independent would cover far less."""
    numbers, covered, naive = np.random.default_rng(waves), [], []
    for _ in range(600):
        moods = np.repeat(numbers.normal(0, 0.1, waves), 16)
        values = np.exp(moods + numbers.normal(0, 0.1, len(moods)))
        told = quantile(values, 0.5, "ms", blocks=np.repeat(np.arange(waves), 16).tolist())
        alone = quantile(values, 0.5, "ms")
        for found, kept in ((told, covered), (alone, naive)):
            assert found.low is not None
            assert found.high is not None
            kept.append(found.low <= 1.0 <= found.high)
    assert np.mean(naive) < 0.7
    assert np.mean(covered) > (0.85 if waves < 12 else 0.9)  # so few waves can hardly tell how much they differ


@pytest.mark.parametrize("blocks", [12, 30, 100])
def test_the_interval_of_a_paired_ratio_covers_it(blocks: int) -> None:
    """What a block does to both arms cancels out; an arm with stragglers is compared with one without."""
    numbers, studies = np.random.default_rng(blocks), 1_000
    mood = numbers.normal(0, 0.3, (blocks, studies))
    slow = np.log(latencies(numbers, (blocks, studies), "latencies")) + np.log(1.3) + mood
    fast = numbers.normal(0, 0.15, (blocks, studies)) + mood
    truth = float(np.log(everyone("latencies")).mean() + np.log(1.3))
    low, high = percentile_intervals(slow - fast)
    assert NOMINAL[0] <= np.mean((low <= truth) & (truth <= high)) <= NOMINAL[1]
    shown = paired_ratios(
        {Metric.TRAJECTORY: dict(enumerate(slow[:, 0]))}, {Metric.TRAJECTORY: dict(enumerate(fast[:, 0]))}, seed=1
    )[Metric.TRAJECTORY]
    assert (shown.low, shown.high) == pytest.approx((np.exp(low[0]), np.exp(high[0])))


@pytest.mark.parametrize("blocks", [12, 30, 100])
def test_the_interval_of_a_mean_covers_it_unless_there_are_stragglers(blocks: int) -> None:
    numbers = np.random.default_rng(blocks)
    ordinary = numbers.lognormal(0.0, 0.15, (blocks, 1_000))
    low, high = percentile_intervals(ordinary)
    truth = np.exp(0.15**2 / 2)
    assert NOMINAL[0] <= np.mean((low <= truth) & (truth <= high)) <= NOMINAL[1]
    low, high = percentile_intervals(latencies(numbers, (blocks, 400), "latencies"))
    truth = everyone("latencies").mean()
    assert 0.85 <= np.mean((low <= truth) & (truth <= high)) <= 0.95
    (shown,) = means_by_block(ordinary[:, :1], np.ones((blocks, 1)), range(blocks), "ms", seed=1)
    assert (shown.low, shown.high) == pytest.approx(np.ravel(percentile_intervals(ordinary[:, :1])))


def percentile_intervals(values: np.ndarray) -> np.ndarray:
    """`percentile_interval` of the mean of every column, blocks x studies."""
    tail = expanded_tail(len(values))
    means = resampled_means(values, np.ones((len(values), 1)), seed=1)
    return np.quantile(means, (tail, 1 - tail), axis=0, method="nearest")


@pytest.mark.parametrize("n", [60, 100, 200])
def test_the_interval_of_a_failure_rate_covers_it(n: int) -> None:
    """Exactly, from the binomial distribution: what fails is counted, so that coverage depends on the true rate."""
    failed = np.arange(n + 1)
    low, high = np.array([wilson(int(each), n) for each in failed]).T
    rates = np.linspace(0.005, 0.5, 200)
    coverage = np.array([stats.binom.pmf(failed, n, rate)[(low <= rate) & (rate <= high)].sum() for rate in rates])
    assert NOMINAL[0] <= coverage.mean() <= NOMINAL[1]
    assert np.mean((coverage >= NOMINAL[0]) & (coverage <= NOMINAL[1])) >= 0.94
    assert coverage.min() >= 0.90


@pytest.mark.parametrize("n", [12, 100])
def test_the_interval_of_a_shift_covers_it(n: int) -> None:
    numbers, paired, unpaired = np.random.default_rng(n), [], []
    for _ in range(400):
        before = np.log(latencies(numbers, (n,), "latencies"))
        after = np.log(latencies(numbers, (n,), "latencies")) + 0.1
        for kept, found in ((paired, paired_shift(before, after)), (unpaired, unpaired_shift(before, after))):
            assert found.low is not None
            assert found.high is not None
            kept.append(found.low <= 0.1 <= found.high)
    assert NOMINAL[0] <= np.mean(paired) <= NOMINAL[1]
    assert NOMINAL[0] <= np.mean(unpaired) <= NOMINAL[1]
