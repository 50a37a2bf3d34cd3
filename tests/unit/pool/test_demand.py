"""Demand: what was announced, and what the past lets expect."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.pool import demand as module
from dutyfree.pool.arrivals import MAX_TICKS, MEMORY_S, History, Past, Sizes
from dutyfree.pool.demand import MAX_STATES, Announcement, Demand
from dutyfree.pool.keepalive import lives, ttl_s, worth_s
from dutyfree.pool.planner_input import Tuning
from dutyfree.pool.size import Size
from dutyfree.pool.state import State
from support.pool_model import MIB, ladder

ATTRS = ladder("b", "attrs", "deps").top
FLASK = ladder("b", "flask").top
BASE = State(("b",))
OTHER = State(("c",))


def past_of(demand: Demand, state: State, lead_s: float = 1.0) -> Past:
    past = demand.past(state, lead_s)
    assert past is not None
    return past


def announced(*given: tuple[State, int, float], until_s: float = 100.0) -> Demand:
    demand = Demand()
    demand.announce(
        [Announcement(str(n), state, count, at, until_s) for n, (state, count, at) in enumerate(given)], 0.0
    )
    return demand


def test_what_is_announced_comes_out_by_time_and_then_in_the_order_given() -> None:
    demand = announced((FLASK, 2, 5.0), (ATTRS, 1, 5.0), (OTHER, 1, 1.0))
    assert demand.announced(0.0) == [(OTHER, 1, 1.0), (FLASK, 2, 5.0), (ATTRS, 1, 5.0)]


def test_the_same_announcement_again_changes_nothing() -> None:
    demand = announced((FLASK, 2, 5.0), (ATTRS, 3, 5.0))
    assert demand.arrived(FLASK, 5.0)
    demand.announce([Announcement("0", FLASK, 2, 5.0, 100.0)], 5.0)
    assert demand.announced(5.0) == [(FLASK, 1, 5.0), (ATTRS, 3, 5.0)]


def test_an_announcement_is_replaced_by_another_under_its_id() -> None:
    demand = announced((FLASK, 2, 5.0))
    assert demand.arrived(FLASK, 5.0)
    demand.announce([Announcement("0", FLASK, 4, 6.0, 100.0)], 5.0)
    assert demand.announced(5.0) == [(FLASK, 3, 6.0)]
    demand.announce([Announcement("0", ATTRS, 4, 6.0, 100.0)], 5.0)
    assert demand.announced(5.0) == [(ATTRS, 4, 6.0)]
    assert not demand.arrived(FLASK, 6.0)


def test_an_announcement_is_used_up_withdrawn_or_lapses() -> None:
    demand = announced((FLASK, 1, 5.0), (ATTRS, 1, 5.0), (OTHER, 1, 5.0), until_s=10.0)
    assert demand.arrived(FLASK, 5.0)
    assert not demand.arrived(FLASK, 5.0)
    demand.withdraw("1")
    demand.withdraw("1")
    assert demand.announced(10.0) == [(OTHER, 1, 5.0)]
    assert demand.announced(10.5) == []
    assert not demand.arrived(OTHER, 10.5)


@pytest.mark.parametrize(
    ("count", "at_s", "until_s"), [(0, 0, 1), (1, 2, 1), (1, float("nan"), 1), (1, 0, float("inf"))]
)
def test_what_says_nothing_is_refused(count: int, at_s: float, until_s: float) -> None:
    with pytest.raises(InvalidRequest):
        Announcement("x", BASE, count, at_s, until_s)


def test_announcements_are_bounded_and_lapsed_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANNOUNCEMENTS", 2)
    demand = announced((FLASK, 1, 1.0), (ATTRS, 1, 1.0), until_s=10.0)
    with pytest.raises(CapacityError):
        demand.announce([Announcement("0", BASE, 9, 1.0, 2.0), Announcement("z", BASE, 1, 1.0, 2.0)], 0.0)
    assert demand.announced(0.0) == [(FLASK, 1, 1.0), (ATTRS, 1, 1.0)]
    demand.announce([Announcement("z", BASE, 1, 11.0, 20.0)], 11.0)
    assert demand.announced(11.0) == [(BASE, 1, 11.0)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([ATTRS, FLASK, OTHER]), st.integers(1, 4), st.floats(0, 9)), max_size=6),
    st.lists(st.sampled_from([ATTRS, FLASK, OTHER]), max_size=20),
)
def test_every_arrival_uses_up_one_at_most(given: list[tuple[State, int, float]], arrivals: list[State]) -> None:
    demand = announced(*given)
    expected = Counter[State]()
    for state, count, _ in given:
        expected[state] += count
    for state in arrivals:
        assert demand.arrived(state, 1.0) == (expected[state] > 0)
        expected[state] = max(0, expected[state] - 1)
    left = Counter[State]()
    for state, count, _ in demand.announced(1.0):
        left[state] += count
    assert left == +expected


def test_a_burst_is_a_need_of_its_own_size_not_of_the_mean() -> None:
    demand = Demand()
    for step in range(5):
        for number in range(64):
            demand.arrived(ATTRS, 60.0 * step + number / 1000)
    assert demand.needed(ATTRS, 1.0, 241.0, 0.95) == 64


def test_steady_arrivals_need_what_comes_within_a_refill() -> None:
    demand, numbers, now_s = Demand(), random.Random(6), 0.0
    for _ in range(600):
        now_s += numbers.expovariate(2.0)
        demand.arrived(ATTRS, now_s)
    needed = demand.needed(ATTRS, 2.0, now_s, 0.95)
    assert 6 <= needed <= 12  # 1 + a Poisson of mean 4: its 95th percentile is 9
    assert demand.needed(ATTRS, 2.0, now_s, 0.5) < needed < demand.needed(ATTRS, 8.0, now_s, 0.95)


def test_littles_law_is_a_floor() -> None:
    demand = Demand()
    for number in range(40):
        demand.arrived(ATTRS, number * 0.5)
    assert demand.needed(ATTRS, 4.0, 20.0, 0.0001) >= 6
    assert demand.needed(ATTRS, 0.4, 20.0, 0.0001) == 1


def test_what_was_announced_is_not_expected_again() -> None:
    demand = announced((ATTRS, 64, 0.0))
    for _ in range(64):
        assert demand.arrived(ATTRS, 1.0)
    assert demand.needed(ATTRS, 1.0, 1.0, 0.95) == 0
    assert past_of(demand, ATTRS).arrivals == 64


def test_arrivals_count_for_all_that_they_begin_with() -> None:
    demand = Demand()
    demand.arrived(ATTRS, 1.0)
    demand.arrived(FLASK, 1.0)
    assert demand.needed(BASE, 1.0, 1.0, 0.95) == 2
    assert demand.needed(ATTRS.cut(2), 1.0, 1.0, 0.95) == 1
    assert demand.needed(OTHER, 1.0, 1.0, 0.95) == 0
    assert list(demand.recent(0.5)) == [FLASK, ATTRS]
    assert demand.past(BASE, 1.0, exact=True) is None
    assert demand.past(FLASK, 1.0, exact=True) == demand.past(FLASK, 1.0)
    assert list(demand.recent(1.5)) == []


def test_once_is_no_pattern_and_those_who_never_stop_have_no_gaps() -> None:
    demand = Demand()
    for number in range(30):
        demand.arrived(ATTRS, number / 50)
    assert past_of(demand, ATTRS).gap_s is None
    for number in range(300):
        demand.arrived(ATTRS, 1 + number / 10)
    gap_s = past_of(demand, ATTRS).gap_s
    assert gap_s is not None
    assert gap_s < 0.5


def steps_of(demand: Demand, steps: int) -> float:
    """Every 100 s 27 come at once, and then 80 one by one, a bit more than half a second apart. When it ends."""
    now_s = 0.0
    for step in range(steps):
        now_s = 100.0 * step
        for _ in range(27):
            demand.arrived(ATTRS, now_s)
        for _ in range(80):
            now_s += 0.55
            demand.arrived(ATTRS, now_s)
    return now_s


def test_how_steps_begin_is_not_forgotten_for_all_those_who_come_one_by_one() -> None:
    demand = Demand()
    end_s = steps_of(demand, 6)
    past = past_of(demand, ATTRS, 0.2)
    assert past.likely(0.5).quantile(0.5) == 1
    assert past.likely(30.0).counts == (27,) * 5, "before the first one there was nothing"
    assert demand.needed(ATTRS, 0.2, end_s + 30.0, 0.95) == 27
    assert past.gap_s == pytest.approx(56.0, rel=0.2)


def test_the_next_arrival_is_expected_by_the_length_of_past_gaps() -> None:
    demand = Demand()
    steps_of(demand, 3)
    past = past_of(demand, ATTRS)
    assert past.soon(0.0, 0.5)
    assert not past.soon(5.0, 0.5), "the step is over"
    assert past.soon(28.0, 0.5), "half of the time until the next one is gone"
    assert past.soon(5.0, 25.0), "or it takes as long to get ready"


@pytest.mark.parametrize("share", [0.01, 0.3, 0.36, 0.37, 0.95, 1.0])
def test_who_came_in_a_crowd_counts_as_many_times(share: float) -> None:
    assert Sizes((*(1 for _ in range(36)), 64)).quantile(share) == (1 if share <= 0.36 else 64)
    assert Sizes((0, 0)).quantile(share) == 0


def test_gaps_fade() -> None:
    history = History()
    for number in range(20):
        history.add(number * 300.0, announced=False)
    before = history.past(1.0).gap_s
    assert before == pytest.approx(300.0, rel=0.2)
    start_s = 20 * 300.0
    for number in range(round(12 * MEMORY_S / 5)):
        history.add(start_s + number * 5.0, announced=False)
    assert history.past(1.0).gap_s == pytest.approx(5.0, rel=0.2)
    assert not history.past(1.0).soon(200.0, 1.0)


def test_histories_are_bounded() -> None:
    demand = Demand()
    for number in range(3 * MAX_TICKS):
        demand.arrived(BASE, number * 10.0)
    assert sum(past_of(demand, BASE).likely(0.0).counts) == MAX_TICKS - 1
    for number in range(MAX_STATES + 5):
        demand.arrived(State((f"s{number}",)), 10_000.0)
    assert demand.past(BASE, 1.0) is None
    assert len(list(demand.recent(0.0))) == MAX_STATES


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=150),
    st.floats(0.001, 100),
    st.floats(0.01, 1.0),
)
def test_a_need_is_between_none_and_all_that_came(gaps: list[float], lead_s: float, quantile: float) -> None:
    demand, now_s = Demand(), 0.0
    for gap_s in gaps:
        now_s += gap_s
        demand.arrived(BASE, now_s)
    needed = demand.needed(BASE, lead_s, now_s, quantile)
    assert 0 <= needed <= len(gaps)
    assert needed >= 1 or quantile < 1
    assert demand.needed(BASE, lead_s, now_s, 1.0) >= needed


def test_time_to_live_outlasts_the_gap_between_steps_and_follows_what_is_shared() -> None:
    tuning, demand = Tuning(), Demand()
    assert ttl_s(None, 1.0, Size(), tuning) == tuning.keep_unknown_s
    end_s = steps_of(demand, 5)
    assert 56.0 <= ttl_s(past_of(demand, ATTRS), 1.0, Size(), tuning) <= 70.0
    for number in range(200):
        demand.arrived(FLASK, end_s + 20.0 * number)
    assert lives(past_of(demand, BASE), 1.0, Size(), tuning, end_s + 4000.0)
    assert not lives(past_of(demand, ATTRS), 1.0, Size(), tuning, end_s + 4000.0)


def test_what_is_large_and_quickly_built_lives_shorter() -> None:
    tuning = Tuning()
    assert worth_s(1.0, Size(memory_bytes=16 * 1024 * MIB), tuning) == pytest.approx(225.0)
    assert worth_s(0.01, Size(memory_bytes=16 * 1024 * MIB), tuning) == pytest.approx(2.25)
    assert ttl_s(None, 0.01, Size(memory_bytes=16 * 1024 * MIB), tuning) == tuning.keep_at_least_s
    assert worth_s(1000.0, Size(), tuning) == tuning.keep_at_most_s
