"""Greedy-dual: who makes room first, and how the clock lets the past fade."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.pool.commands import Create, Destroy
from dutyfree.pool.demand import Announcement
from dutyfree.pool.eviction import Evictable, in_order, priority, share
from dutyfree.pool.planner_input import Limits
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.state import State
from support.pool_model import MIB, PoolModel, ladder, measured

A, B, C = ladder("a"), ladder("b"), ladder("c")


def test_what_is_asked_for_often_dear_to_build_and_small_stays() -> None:
    assert priority(0, 10, 1.0, 1) > priority(0, 1, 1.0, 1)
    assert priority(0, 1, 10.0, 1) > priority(0, 1, 1.0, 1)
    assert priority(0, 1, 1.0, 1) > priority(0, 1, 1.0, 4)
    assert priority(5, 1, 1.0, 1) > priority(0, 5, 1.0, 1)


def test_a_share_is_of_whatever_is_taken_most_of() -> None:
    limits = Limits(10, memory_bytes=100 * MIB, disk_bytes=1000 * MIB)
    assert share(NO_SIZE, limits) == 1
    assert share(Size(20 * MIB, 100 * MIB), limits) == 2
    assert share(Size(20 * MIB, 500 * MIB), limits) == 5
    assert share(Size(20 * MIB, 500 * MIB), Limits(10)) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99)), max_size=20))
def test_the_order_is_that_of_priorities_and_does_not_depend_on_how_it_was_given(
    given: list[tuple[float, int]],
) -> None:
    candidates = [Evictable(f"{name}-{number}", worth, NO_SIZE) for number, (worth, name) in enumerate(given)]
    ordered = in_order(candidates)
    assert ordered == in_order(reversed(candidates))
    assert [each.priority for each in ordered] == sorted(each.priority for each in candidates)


def test_a_sandbox_that_was_worth_much_once_is_overtaken() -> None:
    pool = PoolModel((A, B, C), Limits(2))

    def visit(state: State) -> None:
        """Somebody comes who was announced: nobody expects them again, and what they leave behind is surplus."""
        pool.demand.announce([Announcement("visit", state, 1, pool.now_s, pool.now_s)], pool.now_s)
        assert pool.demand.arrived(state, pool.now_s)
        pool.demand.withdraw("visit")

    for _ in range(20):
        visit(A.top)
    (old,) = pool.put_idle(A.top)
    rounds = 0
    while old in pool.idle:
        rounds += 1
        # B and C take turns. Each of them was wanted less often than A, for a long time.
        state = (B, C)[rounds % 2].top
        visit(state)
        pool.queue.append(state)
        pool.settle()
        for sandbox in list(pool.leased):
            pool.give_back(sandbox)
        pool.settle()
        assert rounds < 20, "long before B and C have been wanted as often as A"
    assert rounds > 5
    assert pool.clock > 0


def test_only_as_many_go_as_are_needed() -> None:
    costs = measured((A, B, C))
    costs.observe_size(C.top, Size(25 * MIB, MIB))
    pool = PoolModel((A, B, C), Limits(8, memory_bytes=50 * MIB), costs=costs)
    pool.put_idle(A.top, count=4)  # of 10 MiB each
    pool.queue.append(C.top)
    commands = pool.plan()
    assert [type(each) for each in commands] == [Destroy, Destroy]
    pool.finish()
    assert pool.plan() == (Create(C.top),)


def test_no_second_sandbox_is_evicted_while_one_eviction_is_under_way() -> None:
    pool = PoolModel((A, B), Limits(2))
    pool.put_idle(A.top, count=2)
    pool.queue.append(B.top)
    assert len(pool.plan()) == 1
    assert pool.plan() == ()


def test_room_that_is_being_made_is_not_taken_by_those_who_come_after() -> None:
    costs = measured((A, B, C))
    costs.observe_size(C.top, Size(25 * MIB, MIB))
    pool = PoolModel((A, B, C), Limits(8, memory_bytes=50 * MIB), costs=costs)
    pool.put_idle(A.top, count=4)
    pool.queue += [C.top, B.top]
    assert {type(each) for each in pool.plan()} == {Destroy}
    pool.finish()
    assert pool.plan() == (Create(C.top), Create(B.top))


def test_nothing_goes_for_what_would_not_fit_even_then() -> None:
    costs = measured((A, B))
    costs.observe_size(B.top, Size(45 * MIB, MIB))
    pool = PoolModel((A, B), Limits(8, memory_bytes=50 * MIB), costs=costs)
    pool.put_idle(A.top, count=1)
    leased = pool.put_idle(A.top, count=1)
    pool.leased[leased[0]] = pool.idle.pop(leased[0])
    pool.queue.append(B.top)
    assert pool.plan() == ()
    pool.give_back(leased[0])
    assert {type(each) for each in pool.plan()} == {Destroy}
