"""Quantiles: properties that hold for any sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.measure.stats.caveats import Code
from dutyfree.measure.stats.estimate import Estimate
from dutyfree.measure.stats.quantiles import effective_size, least_size, quantile

SAMPLES = st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=400)
SHARES = st.sampled_from([0.05, 0.5, 0.9, 0.95, 0.99])


def codes(estimate: Estimate) -> set[str]:
    return {caveat.code for caveat in estimate.caveats}


@given(SAMPLES, SHARES)
def test_the_interval_holds_its_estimate_and_both_lie_in_the_sample(values: list[float], p: float) -> None:
    found = quantile(values, p, "ms")
    assert min(values) <= found.value <= max(values)
    assert found.low is None or min(values) <= found.low <= found.value
    assert found.high is None or found.value <= found.high <= max(values)


@given(SAMPLES, SHARES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_other_units_change_nothing_but_the_unit(values: list[float], p: float, factor: float) -> None:
    one, other = quantile(values, p, "ms"), quantile([factor * value for value in values], p, "ms")
    assert other.value == factor * one.value
    assert other.low == (None if one.low is None else factor * one.low)
    assert other.high == (None if one.high is None else factor * one.high)


@given(SAMPLES, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_trials_changes_nothing(values: list[float], p: float, numbers: st.randoms) -> None:  # type: ignore[valid-type]
    shuffled = list(values)
    numbers.shuffle(shuffled)
    assert quantile(shuffled, p, "ms") == quantile(values, p, "ms")


@given(SAMPLES, SHARES)
def test_the_mirror_image_has_the_mirrored_interval(values: list[float], p: float) -> None:
    one, other = quantile(values, p, "ms"), quantile([-value for value in values], 1 - p, "ms")
    assert (one.low is None, one.high is None) == (other.high is None, other.low is None)
    if one.low is not None and other.high is not None:
        assert one.low == pytest.approx(-other.high)


def test_a_sample_is_large_enough_from_the_sizes_of_the_method_on() -> None:
    assert [least_size(p) for p in (0.50, 0.95, 0.99)] == [6, 59, 299]


@pytest.mark.parametrize(("p", "needed"), [(0.95, 59), (0.99, 299)])
def test_below_that_size_there_is_no_upper_bound_and_a_caveat_says_why(p: float, needed: int) -> None:
    short, long = (quantile(np.arange(1.0, n + 1), p, "ms") for n in (needed - 1, needed))
    assert short.high is None
    assert Code.NO_BOUND in codes(short)
    assert str(needed) in next(each.text for each in short.caveats if each.code == Code.NO_BOUND)
    assert long.high is not None
    assert Code.NO_BOUND not in codes(long)


def test_nothing_is_trimmed() -> None:
    """A leaderboard that trims 5 % at either end reports the 95th percentile as the 99th."""
    values = [1.0] * 95 + [10.0] * 5
    assert quantile(values, 0.99, "ms").value == 10.0
    assert quantile(values, 0.97, "ms").value == 10.0


def test_few_sandboxes_carry_a_caveat() -> None:
    assert Code.FEW_SANDBOXES in codes(quantile([1.0] * 11, 0.5, "ms"))
    assert Code.FEW_SANDBOXES not in codes(quantile([1.0] * 12, 0.5, "ms"))


def test_waves_that_differ_make_sandboxes_count_for_less() -> None:
    numbers = np.random.default_rng(1)
    waves = np.repeat(np.arange(10), 20)
    alike, apart = numbers.random(200), numbers.random(200) + waves
    assert effective_size(alike, waves) > 150
    assert effective_size(apart, waves) < 15
    assert Code.CLUSTERED in codes(quantile(apart, 0.5, "ms", waves.tolist()))


def test_equal_values_of_different_waves_are_no_difference_of_waves() -> None:
    values, waves = np.tile([1.0, 1.0, 2.0, 2.0], 30), np.repeat(np.arange(30), 4)
    assert effective_size(values, waves) == 120


def test_too_few_waves_to_tell_are_a_caveat_of_their_own() -> None:
    found = quantile([1.0, 2.0, 3.0, 4.0] * 4, 0.5, "ms", [0] * 16)
    assert Code.CLUSTERED in codes(found)
    assert found.low is not None
