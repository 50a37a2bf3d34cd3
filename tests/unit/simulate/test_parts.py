"""Distributions, cores that are shared, loads, placement: each alone."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.fleet import routing as fleet
from dutyfree.simulate.clock import Clock, Contention, Processor
from dutyfree.simulate.distributions import Distribution, Exponential, Fixed, Lognormal, Samples, Zipf, total
from dutyfree.simulate.load import Arrivals, Recipes, Stragglers
from dutyfree.simulate.outcome import Summary
from support.scenarios import BEHAVIOUR, steps

KINDS: list[Distribution] = [Fixed(2.0), Lognormal(1.0, 3.0), Exponential(2.0), Samples((1.0, 2.0, 6.0))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_what_is_drawn_has_the_mean_and_the_variance_that_are_told(kind: Distribution) -> None:
    numbers = Random(7)
    drawn = [kind.draw(numbers) for _ in range(40_000)]
    assert fmean(drawn) == pytest.approx(kind.mean, rel=0.03)
    assert fmean((each - kind.mean) ** 2 for each in drawn) == pytest.approx(kind.variance, rel=0.12, abs=1e-9)
    assert min(drawn) >= 0


def test_a_lognormal_has_the_quantiles_that_it_was_made_of() -> None:
    numbers, kind = Random(7), Lognormal(0.2, 0.9)
    found = Summary.of([kind.draw(numbers) for _ in range(40_000)])
    assert found.p50_s == pytest.approx(0.2, rel=0.03)
    assert found.p95_s == pytest.approx(0.9, rel=0.05)


@pytest.mark.parametrize("count", [1, 5, 12, 13, 150])
def test_a_total_is_that_of_values_drawn_one_by_one(count: int) -> None:
    numbers, kind = Random(7), Lognormal(1.0, 3.0)
    totals = [total(kind, count, numbers) for _ in range(20_000)]
    assert fmean(totals) == pytest.approx(count * kind.mean, rel=0.03)
    assert fmean((each - count * kind.mean) ** 2 for each in totals) == pytest.approx(count * kind.variance, rel=0.12)


def test_zipf_prefers_the_first() -> None:
    numbers, kind = Random(7), Zipf(20, 1.0)
    drawn = [kind.draw(numbers) for _ in range(50_000)]
    assert drawn.count(0) / drawn.count(3) == pytest.approx(4.0, rel=0.1)
    assert set(drawn) == set(range(20))
    even = [Zipf(4, 0.0).draw(numbers) for _ in range(20_000)]
    assert even.count(0) == pytest.approx(5000, rel=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(-1.0),
        lambda: Lognormal(0.0, 1.0),
        lambda: Lognormal(2.0, 1.0),
        lambda: Exponential(0.0),
        lambda: Samples(()),
        lambda: Samples((1.0, float("nan"))),
        lambda: Zipf(0, 1.0),
        lambda: Contention(0.0),
        lambda: Stragglers(share=2.0),
        lambda: steps(quantile=0.0),
        lambda: steps(prompts=0),
        lambda: Arrivals(1, BEHAVIOUR, 0.0),
        lambda: Recipes(rungs=("base", "base")),
        lambda: Recipes(variants={"unknown": 3}),
    ],
)
def test_values_that_mean_nothing_are_refused(make: object) -> None:
    with pytest.raises(InvalidRequest):
        make()  # type: ignore[operator]


def ends(contention: Contention, works: list[tuple[float, float]]) -> list[float]:
    """When each work ends: (start, seconds of work) in, times out."""
    clock = Clock()
    processor = Processor(clock, contention)
    found = [-1.0] * len(works)

    def end(index: int) -> None:
        assert found[index] < 0, "a work ends once"
        found[index] = clock.now_s

    for index, (start_s, work_s) in enumerate(works):
        clock.after(start_s, processor.start, work_s, end, index)
    clock.run()
    return found


def test_works_share_a_core() -> None:
    assert ends(Contention(1, 1.0), [(0.0, 1.0), (0.5, 1.0)]) == pytest.approx([1.5, 2.0])
    assert ends(Contention(2, 1.0), [(0.0, 1.0), (0.5, 1.0)]) == pytest.approx([1.0, 1.5])
    assert ends(Contention(1, 0.0), [(0.0, 1.0), (0.5, 1.0)]) == pytest.approx([1.0, 1.5])
    assert ends(Contention(1, 0.5), [(0.0, 1.0), (0.0, 1.0)]) == pytest.approx([2**0.5, 2**0.5])


def test_tenants_slow_works_down() -> None:
    clock = Clock()
    processor = Processor(clock, Contention(1, 1.0))
    found: list[float] = []
    processor.start(1.0, lambda: found.append(clock.now_s))
    clock.after(0.5, processor.beside, 1.0)
    clock.after(1.0, processor.beside, -1.0)
    clock.run()
    assert found == pytest.approx([1.25])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20), st.integers(1, 4))
def test_shared_cores_do_as_much_work_as_is_asked_of_them(works: list[tuple[float, float]], cores: int) -> None:
    found = ends(Contention(cores, 1.0), works)
    for (start_s, work_s), end_s in zip(works, found, strict=True):
        assert end_s >= start_s + work_s - 1e-6
    assert max(found) <= max(start_s for start_s, _ in works) + sum(work_s for _, work_s in works) + 1e-6
    by_size = sorted((work_s, end_s) for (start_s, work_s), end_s in zip(works, found, strict=True) if start_s == 0)
    assert all(less[1] <= more[1] + 1e-6 for less, more in pairwise(by_size))


def test_a_step_is_the_same_whatever_was_before_it() -> None:
    popularity = Zipf(6, 1.0)
    load = steps()
    assert load.step(2, popularity, 1) == load.step(2, popularity, 1)
    assert load.step(2, popularity, 1) != load.step(1, popularity, 1)
    rollouts = load.step(0, popularity, 1)
    assert len(rollouts) == 8 * 4
    assert [each.group for each in rollouts] == [prompt for prompt in range(8) for _ in range(4)]
    assert all(len({each.recipe for each in rollouts if each.group == group}) == 1 for group in range(8))


def test_arrivals_come_at_their_rate() -> None:
    load = Arrivals(9_999, BEHAVIOUR, rate_per_s=5.0, group=3)
    groups = list(load.arrivals(Zipf(6, 1.0), 1))
    assert sum(len(rollouts) for _, rollouts in groups) == 9_999
    assert groups[-1][0] == pytest.approx(9_999 / 3 / 5.0, rel=0.1)
    assert all(earlier[0] <= later[0] for earlier, later in pairwise(groups))


def test_ladders_share_what_recipes_share() -> None:
    ladders = Recipes(repositories=6, rungs=("base", "image", "repository"), variants={"image": 2}).ladders()
    assert len({ladder.rungs[0] for ladder in ladders}) == 1
    assert len({ladder.rungs[1] for ladder in ladders}) == 2
    assert len({ladder.rungs[2] for ladder in ladders}) == 6


RING = fleet.Ring([f"node-{index}" for index in range(50)])


def test_a_walk_meets_every_node_once_and_begins_elsewhere_for_each_key() -> None:
    assert sorted(RING.walk("a")) == list(range(50))
    assert RING.walk("a") == RING.walk("a") == fleet.Ring([f"node-{index}" for index in range(50)]).walk("a")
    firsts = [RING.walk(f"key-{index}")[0] for index in range(5_000)]
    assert max(firsts.count(node) for node in range(50)) < 2.5 * 5_000 / 50


def test_a_node_that_goes_moves_only_its_own_keys() -> None:
    names = [f"node-{index}" for index in range(50)]
    smaller = fleet.Ring(names[:-1])
    for index in range(500):
        before, after = RING.walk(f"key-{index}")[0], smaller.walk(f"key-{index}")[0]
        assert before in (after, 49)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=50),
    st.integers(1, 12),
    st.integers(1, 10),
    st.text("abc", max_size=3),
)
def test_groups_stay_together_within_the_bound(loads: list[int], room: int, size: int, key: str) -> None:
    ring = fleet.Ring([f"node-{index}" for index in range(len(loads))], points=8)
    chosen = fleet.with_locality(ring.walk(key), loads, room, size, sum(loads))
    assert len(chosen) == size
    bound = fleet.BOUND * (sum(loads) + size) / len(loads)
    assert all(loads[node] <= bound for node in chosen)
    free = [node for node in ring.walk(key) if loads[node] < bound and loads[node] < room]
    assume(free)
    assert chosen[0] == free[0]
    if room - loads[free[0]] >= size:
        assert set(chosen) == {free[0]}


def test_the_least_loaded_are_chosen() -> None:
    assert fleet.least_loaded([2, 0, 1], 4) == [1, 1, 2, 0]
