"""The order in which announced sandboxes are prepared, for requests that come in order, in turn and at random."""

from __future__ import annotations

import random
from collections import Counter
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.pool.demand import Announcement, Demand
from dutyfree.pool.planner import unready
from dutyfree.pool.planner_input import Limits
from dutyfree.pool.spreading import AT_FIRST, OUT_OF_ORDER, Entry, in_order_share, spread
from dutyfree.pool.state import State
from support.announced_tasks import AnnouncedTasks
from support.pool_model import MIB, PoolModel, ladder

STATES = [State((f"state-{number}",)) for number in range(6)]
ENTRIES = st.lists(
    st.tuples(st.sampled_from(STATES), st.integers(1, 30), st.floats(0, 1)).map(
        lambda drawn: Entry(drawn[0], drawn[1], int(drawn[1] * drawn[2]))
    ),
    max_size=8,
)
ROWS = st.integers(OUT_OF_ORDER, 100)


def unrolled(entries: list[Entry], places: int, in_a_row: int) -> list[State]:
    return [state for state, count in spread(entries, places, in_a_row) for _ in range(count)]


@settings(max_examples=200, deadline=None)
@given(ENTRIES, st.integers(0, 200), ROWS)
def test_every_expected_sandbox_is_there_exactly_once(entries: list[Entry], places: int, in_a_row: int) -> None:
    expected: Counter[State] = Counter()
    for each in entries:
        expected[each.state] += each.announced - each.arrived
    assert Counter(unrolled(entries, places, in_a_row)) == +expected
    assert all(count > 0 for _, count in spread(entries, places, in_a_row))


@settings(max_examples=200, deadline=None)
@given(ENTRIES, st.integers(1, 200), ROWS)
def test_the_share_that_is_in_order_is_in_order(entries: list[Entry], places: int, in_a_row: int) -> None:
    in_order = [each.state for each in entries for _ in range(each.announced - each.arrived)]
    sure = int(min(places, len(in_order)) * in_order_share(in_a_row))
    assert unrolled(entries, places, in_a_row)[:sure] == in_order[:sure]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 100))
def test_in_turn_each_entry_gets_its_proportion(counts: list[int], places: int) -> None:
    entries = [Entry(state, count) for state, count in zip(STATES, counts, strict=False)]
    got = Counter(unrolled(entries, places, OUT_OF_ORDER)[:places])
    # There is one share of which each entry has as many as this share of its count gives, rounded.
    at_least = max((got[entry.state] - 0.5) / entry.announced for entry in entries)
    at_most = min((got[entry.state] + 0.5) / entry.announced for entry in entries)
    assert at_least <= at_most


@given(st.integers(1, 6), st.integers(1, 10), st.integers(0, 60))
def test_in_turn_goes_on_where_the_requests_are(recipes: int, count: int, arrived: int) -> None:
    tasks = [state for _ in range(count) for state in STATES[:recipes]]
    arrived = min(arrived, len(tasks))
    came = Counter(tasks[:arrived])
    entries = [Entry(state, count, came[state]) for state in STATES[:recipes]]
    assert unrolled(entries, len(tasks), OUT_OF_ORDER) == tasks[arrived:]


def test_requests_show_whether_they_come_in_order() -> None:
    demand = Demand()
    one, other, third = STATES[:3]
    entries = [Announcement(str(n), state, 8, 0.0, 99.0, "step", n) for n, state in enumerate((one, other, third))]
    demand.announce(entries, 0.0)
    group = demand.open(0.0)[0].group
    assert in_order_share(group.in_a_row) == 0.75
    for _ in range(8):
        demand.arrived(one, 1.0)
    assert group.in_a_row == AT_FIRST + 8
    demand.arrived(other, 1.0)
    assert group.in_a_row == AT_FIRST + 9, "the first entry that is open"
    for state in (third, other, third):  # in turn: none of these requests makes an order
        demand.arrived(state, 1.0)
        assert in_order_share(group.in_a_row) == 0
    for _ in range(5):
        demand.arrived(other, 1.0)
    assert 0 < in_order_share(group.in_a_row) < 0.75


def test_an_entry_that_comes_later_has_its_place_in_the_group() -> None:
    demand = Demand()
    demand.announce([Announcement("c", STATES[2], 1, 0.0, 99.0, "step", 2)], 0.0)
    demand.announce([Announcement("other", STATES[3], 1, 0.0, 99.0)], 0.0)
    demand.announce([Announcement("a", STATES[0], 1, 0.0, 99.0, "step", 0)], 0.0)
    assert [state for state, _, _ in demand.announced(0.0)] == [STATES[0], STATES[2], STATES[3]]
    demand.withdraw("a")
    demand.withdraw("c")
    demand.announce([Announcement("b", STATES[1], 1, 0.0, 99.0, "step", 1)], 0.0)
    assert [state for state, _, _ in demand.announced(0.0)] == [STATES[3], STATES[1]], "the group was gone"


def test_memory_that_is_scarce_is_spread_as_places_are() -> None:
    recipes = [ladder("b", f"recipe-{number}") for number in range(4)]
    pool = PoolModel(recipes, Limits(64, memory_bytes=80 * MIB))  # room for eight
    entries = [Announcement(str(n), each.top, 10, 0.0, 1e6, "step", n) for n, each in enumerate(recipes)]
    pool.demand.announce(entries, 0.0)
    pool.settle()
    assert pool.states() == {recipes[0].top: 6, recipes[1].top: 1, recipes[2].top: 1}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from(["", "one", "other"])), max_size=6),
    st.integers(1, 12),
    st.none() | st.integers(1, 12),
    st.integers(0, 3),
    ROWS,
)
def test_what_fits_is_ready_once_there_is_nothing_to_do(
    demand: list[tuple[int, int, str]], sandboxes: int, memory: int | None, leased: int, in_a_row: int
) -> None:
    recipes = [ladder("b", f"recipe-{number}") for number in range(4)]
    pool = PoolModel(recipes, Limits(sandboxes, None if memory is None else 10 * MIB * memory, at_once=2))
    for _ in range(min(leased, sandboxes, memory or sandboxes)):
        pool.ask(recipes[0].top)
        pool.settle()
    entries = [
        Announcement(str(n), recipes[recipe].top, count, pool.now_s, 1e6, group, n)
        for n, (recipe, count, group) in enumerate(demand)
    ]
    pool.demand.announce(entries, pool.now_s)
    for each in pool.demand.open(pool.now_s):
        each.group.in_a_row = in_a_row
    before, room = unready(pool.planner_input()), sandboxes - len(pool.leased)
    assert sum(before.values()) <= room
    assert set(before) <= {group for _, _, group in demand if group}
    pool.settle()
    assert unready(pool.planner_input()) == {}
    if memory is None:
        assert len(pool.idle) >= min(room, sum(count for _, count, _ in demand))


RECIPES, COUNT = 5, 10
GROUPED = [(recipe, COUNT) for recipe in range(RECIPES)]
IN_ORDER = [recipe for recipe in range(RECIPES) for _ in range(COUNT)]
IN_TURN = [recipe for _ in range(COUNT) for recipe in range(RECIPES)]


def hit_rate(tasks: list[int], demand: list[tuple[int, int]], *, group: str = "step", sandboxes: int = 16) -> float:
    run = AnnouncedTasks(sandboxes, tasks, concurrency=8)
    run.announce(demand, group=group)
    return run.run()


@pytest.mark.parametrize(
    ("tasks", "alone", "least"), [(IN_ORDER, 1.0, 1.0), (IN_TURN, 0.54, 0.98)], ids=["in order", "in turn"]
)
def test_a_grouped_announcement_finds_its_sandboxes_ready(tasks: list[int], alone: float, least: float) -> None:
    """Fifty tasks of five recipes, eight at a time, in a pool of sixteen."""
    assert hit_rate(tasks, GROUPED, group="") == alone, "entry by entry, as if each stood alone"
    assert hit_rate(tasks, GROUPED) >= least
    assert hit_rate(tasks, [(recipe, 1) for recipe in tasks]) == 1.0, "announced one by one, in the order of the tasks"


def test_tasks_at_random_find_more_than_without_spreading() -> None:
    drawn = [random.Random(seed).sample(IN_TURN, len(IN_TURN)) for seed in range(8)]
    assert fmean(hit_rate(tasks, GROUPED, group="") for tasks in drawn) < 0.6
    assert fmean(hit_rate(tasks, GROUPED) for tasks in drawn) > 0.75


def test_a_pool_that_is_hardly_larger_than_the_load_serves_both_orders() -> None:
    assert hit_rate(IN_TURN, GROUPED, group="", sandboxes=12) < 0.4
    assert hit_rate(IN_TURN, GROUPED, sandboxes=12) >= 0.85
    assert hit_rate(IN_ORDER, GROUPED, sandboxes=12) >= 0.95
