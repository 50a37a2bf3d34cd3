"""Pool sizes: against sums that are made the long way."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, comb, exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.advise.sizes import announced, unannounced, with_redundancy

examples = settings(max_examples=100, deadline=None)


def enough(size: int, wanted: int, failure_rate: Fraction) -> Fraction:
    """P(at least `wanted` of `size` do not fail), exactly."""
    success = 1 - failure_rate
    return sum(
        (comb(size, k) * success**k * failure_rate ** (size - k) for k in range(wanted, size + 1)), start=Fraction(0)
    )


def at_most(size: int, mean: float) -> float:
    """P(Poisson(mean) <= size), term by term."""
    term = total = exp(-mean)
    for k in range(1, size + 1):
        term *= mean / k
        total += term
    return total


def test_redundancy_by_hand() -> None:
    """One rollout that fails every other time: 1 - 0.5^7 is the first above 0.99."""
    assert with_redundancy(1, 0.5) == 7
    assert with_redundancy(512, 0.0) == 512
    assert with_redundancy(8, 1.0) is None
    assert with_redundancy(8, 0.999) is None


@examples
@given(st.integers(1, 40), st.integers(1, 60))
def test_redundancy_is_the_smallest_that_is_enough(wanted: int, per_cent: int) -> None:
    rate = Fraction(per_cent, 100)
    size = with_redundancy(wanted, per_cent / 100)
    assert size is not None
    assert float(enough(size, wanted, rate)) >= 0.99 - 1e-9
    assert size == wanted or float(enough(size - 1, wanted, rate)) < 0.99 + 1e-9


def test_an_announced_step() -> None:
    pool = announced(64, 8, failure_rate=0.01, worst_failure_rate=0.05)
    assert pool.wanted == 512
    assert pool.size is not None
    assert pool.worst_size is not None
    assert float(enough(pool.size, 512, Fraction(1, 100))) >= 0.99 > float(enough(pool.size - 1, 512, Fraction(1, 100)))
    assert pool.redundancy == pytest.approx(pool.size / 512 - 1)
    assert 512 < pool.size < pool.worst_size


def test_demand_that_nobody_announced_by_hand() -> None:
    """2 per second x 0.5 s: P(Poisson(1) <= 3) = 0.981, P(Poisson(1) <= 4) = 0.996."""
    pool = unannounced(2.0, 0.5, life_s=60.0)
    assert (pool.expected, pool.level, pool.quantile, pool.floor, pool.size) == (1.0, 0.99, 4, 1, 4)
    assert pool.in_use == 120
    assert unannounced(2.0, 0.5, 60.0, miss_cost=9).size == 2  # P(Poisson(1) <= 2) = 0.92


def test_a_cheap_miss_never_lets_the_pool_fall_behind() -> None:
    pool = unannounced(100.0, 0.1, 1.0, miss_cost=0.01)
    assert pool.quantile < pool.floor == pool.size == 10


@examples
@given(st.floats(0.01, 50), st.floats(0.001, 2), st.floats(0.5, 1e4))
def test_the_newsvendor_keeps_the_smallest_number_that_is_enough(rate: float, lead_s: float, miss_cost: float) -> None:
    pool = unannounced(rate, lead_s, 1.0, miss_cost)
    assert at_most(pool.quantile, pool.expected) >= pool.level - 1e-9
    assert pool.quantile == 0 or at_most(pool.quantile - 1, pool.expected) < pool.level + 1e-9
    assert pool.size >= pool.floor == ceil(pool.expected)


def test_what_cannot_be_is_refused() -> None:
    for prompts, group in ((0, 8), (64, 0), (10**6, 10**6)):
        with pytest.raises(InvalidRequest, match="rollouts"):
            announced(prompts, group, 0.0, 0.0)
    for rate, miss_cost in ((0.0, 99.0), (float("nan"), 99.0), (1.0, 0.0), (1.0, float("inf"))):
        with pytest.raises(InvalidRequest):
            unannounced(rate, 0.1, 1.0, miss_cost)
