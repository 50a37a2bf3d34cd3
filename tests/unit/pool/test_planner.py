"""Plans: what they never do, whatever happens; and what they do, told in small stories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.pool.commands import Create, Demote, Destroy, Promote, Reset
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.planner import plan, plan_cold
from dutyfree.pool.planner_input import Abilities, Limits, Tuning
from dutyfree.pool.size import Size
from dutyfree.pool.state import State
from support.pool_model import IMAGES, MIB, STAGES, PoolModel, ladder, measured

ATTRS = ladder("b", "attrs", "attrs-deps")
FLASK = ladder("b", "flask", "flask-deps")
DJANGO = ladder("b", "django", "django-deps")
OTHER = ladder("c")
LADDERS = (ATTRS, FLASK, DJANGO, OTHER, ladder("b"))
BASE = ATTRS.rungs[0]
ABILITIES = [Abilities(reset, images) for reset in (True, False) for images in (True, False)]
TOPS = st.sampled_from([each.top for each in LADDERS])


@st.composite
def pools(draw: st.DrawFn) -> PoolModel:
    """A pool of any shape, with any costs, in which nothing has happened yet."""
    costs = Costs()
    durations = st.sampled_from([0.01, 0.2, 1.0, 5.0])
    for rung in dict.fromkeys(rung for each in LADDERS for rung in each.rungs):
        if draw(st.booleans()):
            costs.observe(Step.create(rung), draw(durations))
            costs.observe(Step.reset(rung), draw(durations))
        if draw(st.booleans()):
            costs.observe(Step.stage(rung.digests[-1]), draw(durations))
        below = costs.size(rung.cut(rung.depth - 1)) if rung.depth > 1 else Size(MIB)
        costs.observe_size(rung, below + Size(draw(st.integers(0, 2)) * MIB, draw(st.integers(0, 2)) * MIB))
    limits = Limits(
        draw(st.integers(1, 8)),
        draw(st.none() | st.integers(4, 24).map(lambda mib: mib * MIB)),
        draw(st.none() | st.integers(3, 24).map(lambda mib: mib * MIB)),
        draw(st.integers(1, 4)),
    )
    return PoolModel(LADDERS, limits, draw(st.sampled_from(ABILITIES)), costs)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), TOPS),
        st.tuples(st.just("announce"), TOPS, st.integers(1, 4), st.sampled_from([0.0, 1.0, 30.0])),
        st.tuples(st.just("give back"), st.integers(0, 7)),
        st.tuples(st.just("finish"), st.integers(0, 4)),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 0.01, 1.0, 20.0, 200.0])),
        st.tuples(st.just("give up"), st.integers(0, 7)),
    ),
    max_size=40,
)


def happen(pool: PoolModel, events: list[tuple[object, ...]]) -> None:
    """Let things happen, with a plan after each; the model refuses what a plan must not ask for."""
    for number, event in enumerate(events):
        match event:
            case ("ask", State() as state):
                pool.ask(state)
            case ("announce", State() as state, int(count), float(in_s)):
                at_s = pool.now_s + in_s
                pool.announce(state, count=count, at_s=at_s, until_s=at_s + 60, prefix=f"{number}-")
            case ("give back", int(which)) if pool.leased:
                pool.give_back(list(pool.leased)[which % len(pool.leased)])
            case ("finish", int(count)):
                pool.finish(count)
            case ("pass", float(seconds)):
                pool.pass_time(seconds)
            case ("give up", int(which)) if pool.queue:
                del pool.queue[which % len(pool.queue)]
        pool.plan()


@settings(max_examples=150, deadline=None)
@given(pools(), EVENTS)
def test_no_limit_is_exceeded_nothing_is_inherited_and_plans_come_to_rest(
    pool: PoolModel, events: list[tuple[object, ...]]
) -> None:
    happen(pool, events)
    pool.settle()
    assert pool.plan() == ()


@settings(max_examples=150, deadline=None)
@given(pools(), EVENTS, st.lists(TOPS, min_size=1, max_size=12))
def test_every_request_that_fits_is_served(
    pool: PoolModel, events: list[tuple[object, ...]], wanted: list[State]
) -> None:
    happen(pool, events)
    pool.queue += wanted
    for _ in range(12 * len(pool.queue) + 30):
        pool.plan()
        pool.finish()
        for sandbox in list(pool.leased):
            pool.give_back(sandbox)
    assert not pool.queue


@settings(max_examples=60, deadline=None)
@given(pools(), st.lists(TOPS, min_size=1, max_size=4))
def test_frequent_requests_do_not_starve_a_rare_one(pool: PoolModel, crowd: list[State]) -> None:
    rare = FLASK.top
    crowd = [state for state in crowd if state != rare]
    pool.queue += [*crowd, rare]
    for _ in range(12 * len(pool.queue) + 30):
        pool.plan()
        pool.finish()
        for sandbox in list(pool.leased):
            pool.give_back(sandbox)
        for state in crowd:
            if pool.queue.count(state) < 3:
                pool.queue.append(state)
    assert rare not in pool.queue


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([each.top for each in LADDERS]), st.integers(1, 3)), min_size=1, max_size=6),
    st.sampled_from([IMAGES, STAGES]),
    st.integers(1, 3),
)
def test_what_is_announced_is_made_in_its_order(
    announced: list[tuple[State, int]], abilities: Abilities, at_once: int
) -> None:
    pool = PoolModel(LADDERS, Limits(32, at_once=at_once), abilities)
    order = [state for state, count in announced for _ in range(count)]
    for number, (state, count) in enumerate(announced):
        pool.announce(state, count=count, prefix=f"{number}-")
    made: list[State] = []
    while commands := pool.plan():
        made += [each.state for each in commands if isinstance(each, Create)]
        pool.finish()
    assert made == order
    for state in order:  # and it is there when they come
        pool.ask(state)
    assert not pool.queue
    assert len(pool.leased) == len(order)


def test_a_step_of_three_prompts_by_four_is_ready_when_it_begins() -> None:
    pool = PoolModel((ATTRS, FLASK, DJANGO), Limits(16, at_once=4))
    prompts = [ATTRS.top, FLASK.top, DJANGO.top]
    pool.announce(*prompts, count=4, at_s=600.0)
    assert pool.plan() == (), "ten minutes ahead nothing is begun"
    pool.pass_time(595.0)
    assert pool.plan() == (Create(ATTRS.top),) * 4
    pool.finish()
    assert pool.plan() == (Create(FLASK.top),) * 4
    pool.finish()
    pool.settle()
    assert pool.states() == dict.fromkeys(prompts, 4)
    pool.pass_time(5.0)
    for state in prompts * 4:
        pool.ask(state)
    assert not pool.queue
    # The step ends: what comes back is reset and kept, for the next one uses the same recipes.
    for sandbox in list(pool.leased):
        pool.give_back(sandbox)
    assert all(isinstance(each, Reset) for each in pool.plan())
    pool.settle()
    assert pool.states() == dict.fromkeys(prompts, 4)
    assert pool.counts["Create"] == 12


def test_an_announcement_that_lapses_leaves_nothing_behind() -> None:
    pool = PoolModel((ATTRS,))
    pool.announce(ATTRS.top, count=3, until_s=5.0)
    pool.settle()
    pool.pass_time(3600.0)
    pool.settle()
    assert not pool.idle
    assert pool.counts["expired"] == 3


def test_synchronous_bursts_that_nobody_announced_find_as_many_as_came_before() -> None:
    pool = PoolModel((ATTRS,), Limits(16, at_once=4))
    for _ in range(3):
        for _ in range(6):
            pool.ask(ATTRS.top)
        pool.settle()
        pool.pass_time(1.0)
        for sandbox in list(pool.leased):
            pool.give_back(sandbox)
        pool.settle()
        pool.pass_time(30.0)
    before = pool.made
    for _ in range(6):
        pool.ask(ATTRS.top)
    assert not pool.queue
    assert pool.made == before


def test_nothing_is_made_for_the_next_burst_before_the_last_one_can_be_over() -> None:
    pool = PoolModel((ATTRS,), Limits(16, at_once=4))
    for _ in range(3):
        pool.pass_time(60.0)
        for _ in range(4):
            pool.demand.arrived(ATTRS.top, pool.now_s)
    pool.leased = {sandbox: pool.idle.pop(sandbox) for sandbox in pool.put_idle(ATTRS.top, count=4)}
    assert pool.plan() == ()
    pool.pass_time(20.0)
    assert pool.plan() == (), "they may be given back"
    pool.pass_time(10.0)
    assert pool.plan() == (Create(ATTRS.top),) * 4, "but the next ones may come first"


def test_idle_sandboxes_without_demand_are_destroyed() -> None:
    pool = PoolModel((ATTRS,))
    pool.ask(ATTRS.top)
    pool.settle()
    pool.give_back(next(iter(pool.leased)))
    pool.settle()
    assert pool.states() == {ATTRS.top: 1}
    pool.pass_time(7200.0)
    pool.settle()
    assert not pool.idle


def test_without_images_an_old_sandbox_is_demoted_to_what_others_begin_with() -> None:
    tuning = Tuning(keep_at_least_s=1.0, keep_unknown_s=60.0)
    pool = PoolModel((ATTRS, FLASK), Limits(8), STAGES, tuning=tuning)
    pool.put_idle(ATTRS.top, made_in=BASE)
    for _ in range(40):
        pool.pass_time(10.0)
        pool.demand.arrived(FLASK.top, pool.now_s)
    assert Demote("box-001") in pool.plan()
    pool.settle()
    assert BASE in pool.states() or FLASK.top in pool.states()


def test_with_images_an_old_sandbox_that_cannot_be_demoted_ends() -> None:
    pool = PoolModel((ATTRS, FLASK))
    pool.put_idle(ATTRS.top)
    pool.pass_time(7200.0)
    assert pool.plan() == (Destroy("box-001", "expired"),)


def test_the_least_worth_makes_room_and_the_clock_moves() -> None:
    pool = PoolModel((ATTRS, FLASK, DJANGO), Limits(2))
    for _ in range(9):
        pool.demand.arrived(ATTRS.top, pool.now_s)
    pool.demand.arrived(FLASK.top, pool.now_s)
    pool.pass_time(55.0)  # neither is expected back soon enough to have a slot
    pool.tuning = replace(pool.tuning, keep_unknown_s=50.0, keep_at_least_s=1.0)
    pool.idle.clear()
    pool.put_idle(FLASK.top)
    pool.put_idle(ATTRS.top)
    pool.queue.append(DJANGO.top)
    (command,) = pool.plan()
    assert command == Destroy("box-001", "evicted", command.clock)  # type: ignore[union-attr]
    assert pool.clock > 0
    pool.finish()
    assert pool.plan() == (Create(DJANGO.top),)


def test_what_fills_a_slot_of_more_worth_is_not_evicted() -> None:
    pool = PoolModel((ATTRS, FLASK), Limits(2))
    pool.put_idle(ATTRS.top, count=2)
    pool.announce(ATTRS.top, count=2)
    pool.demand.arrived(FLASK.top, pool.now_s)
    assert pool.plan() == ()


def test_what_exists_does_not_make_room_for_what_is_hardly_better() -> None:
    pool = PoolModel((ATTRS, FLASK), Limits(1))
    for _ in range(4):
        pool.demand.arrived(ATTRS.top, pool.now_s)
        pool.demand.arrived(FLASK.top, pool.now_s + 2)
        pool.pass_time(20.0)
    pool.put_idle(ATTRS.top)
    assert pool.plan() == ()
    for _ in range(40):
        pool.demand.arrived(FLASK.top, pool.now_s)
        pool.pass_time(2.0)
    assert [type(each) for each in pool.plan()] == [Destroy]


def test_a_returned_sandbox_serves_those_who_want_just_that_before_it_makes_room() -> None:
    pool = PoolModel((ATTRS, FLASK), Limits(3))
    for state in (ATTRS.top, ATTRS.top, ATTRS.top, FLASK.top, ATTRS.top, ATTRS.top):
        pool.ask(state)
        pool.settle()
    assert len(pool.leased) == 3
    first, second, _ = list(pool.leased)
    pool.give_back(first)
    assert pool.plan()[0] == Destroy(first, "evicted", pool.clock), "whoever is next gets the place"
    pool.give_back(second)
    assert pool.plan() == (Reset(second),), "and those behind what suits them"
    pool.finish()
    assert pool.plan() == (Create(FLASK.top),)


def test_those_far_behind_in_the_queue_are_served_by_what_comes_back_as_well() -> None:
    pool = PoolModel((ATTRS, FLASK, DJANGO), Limits(3))
    first, second = pool.put_idle(ATTRS.top, count=2)
    pool.leased = {sandbox: pool.idle.pop(sandbox) for sandbox in (first, second)}
    pool.queue += [FLASK.top, DJANGO.top, DJANGO.top, ATTRS.top]
    assert pool.plan() == (Create(FLASK.top),)
    pool.give_back(first)
    assert pool.plan() == (Reset(first),), "for the last one, rather than to make room for the second"


def test_an_announcement_beyond_all_bounds_costs_no_time() -> None:
    pool = PoolModel((ATTRS,), Limits(4, memory_bytes=20 * MIB))
    pool.announce(ATTRS.top, count=10**9)
    pool.settle()
    assert len(pool.idle) == 2


def test_without_reset_whatever_comes_back_ends() -> None:
    pool = PoolModel((ATTRS,), abilities=Abilities(reset=False, images=True))
    pool.ask(ATTRS.top)
    pool.settle()
    (sandbox,) = pool.leased
    pool.give_back(sandbox)
    assert Destroy(sandbox, "unusable") in pool.plan()


def test_a_stage_that_is_cheaper_than_a_creation_is_added_to_an_idle_sandbox() -> None:
    pool = PoolModel((ATTRS,), costs=measured((ATTRS,), create_s=5.0, stage_s=0.5))
    pool.put_idle(ATTRS.rungs[1])
    pool.announce(ATTRS.top)
    assert pool.plan() == (Promote("box-001", ATTRS.top),)


def test_a_stage_that_is_dearer_than_a_creation_is_not() -> None:
    pool = PoolModel((ATTRS,), costs=measured((ATTRS,), create_s=0.5, stage_s=5.0))
    pool.put_idle(ATTRS.rungs[1])
    pool.announce(ATTRS.top)
    assert pool.plan() == (Create(ATTRS.top),)


def test_a_creation_that_is_late_is_hedged_once() -> None:
    pool = PoolModel((ATTRS,))
    pool.ask(ATTRS.top)
    assert pool.plan() == (Create(ATTRS.top),)
    pool.pass_time(1.0)
    assert pool.plan() == ()
    pool.pass_time(10.0)
    assert pool.plan() == (Create(ATTRS.top),)
    pool.pass_time(10.0)
    assert pool.plan() == ()


def test_what_a_late_creation_holds_is_made_up_for_by_those_of_less_worth() -> None:
    pool = PoolModel((ATTRS, FLASK), Limits(2))
    pool.queue.append(ATTRS.top)
    assert pool.plan() == (Create(ATTRS.top),)
    pool.pass_time(100.0)
    (kept,) = pool.put_idle(FLASK.top)
    pool.announce(FLASK.top, at_s=pool.now_s)
    assert [each.sandbox for each in pool.plan() if isinstance(each, Destroy)] == [kept]


def test_a_reset_that_is_under_way_is_counted_once() -> None:
    pool = PoolModel((ATTRS,), Limits(8), STAGES)
    (sandbox,) = pool.put_idle(ATTRS.top, made_in=BASE)
    pool.leased = {sandbox: pool.idle.pop(sandbox)}
    pool.give_back(sandbox)
    pool.announce(ATTRS.top)
    assert pool.plan() == (Reset(sandbox),)
    assert pool.plan() == (), "it goes on to the top when it is at the base"
    pool.announce(ATTRS.top, prefix="another-")
    assert pool.plan() == (Create(ATTRS.top),)
    pool.finish()
    assert pool.plan() == (Promote(sandbox, ATTRS.top),)


def test_small_requests_do_not_overtake_a_large_one_that_is_next() -> None:
    costs = measured((ATTRS, FLASK))
    costs.observe_size(ATTRS.top, Size(memory_bytes=45 * MIB))
    pool = PoolModel((ATTRS, FLASK), Limits(8, memory_bytes=50 * MIB), costs=costs)
    pool.leased = {sandbox: pool.idle.pop(sandbox) for sandbox in pool.put_idle(FLASK.top, count=2)}
    pool.queue += [ATTRS.top, FLASK.top]
    assert pool.plan() == ()


def test_without_images_lower_rungs_are_kept_for_recipes_that_come_seldom() -> None:
    recipes = [ladder("b", f"repository-{number}", f"dependencies-{number}") for number in range(30)]
    pool = PoolModel(recipes, Limits(8), STAGES)
    for recipe in recipes:
        pool.demand.arrived(recipe.top, pool.now_s)
        pool.pass_time(20.0)
    pool.settle()
    assert pool.states() == {BASE: 1}, "none of them comes again, but somebody does"


def test_those_who_want_more_are_no_reason_to_have_less_ready() -> None:
    pool = PoolModel((ATTRS, ladder("b")), Limits(32))
    for step_s in (0.0, 20.0):
        pool.demand.arrived(BASE, step_s)
        for _ in range(6):
            pool.demand.arrived(ATTRS.top, step_s)
    pool.pass_time(30.0)
    pool.settle()
    assert pool.states() == {ATTRS.top: 6, BASE: 1}


def test_one_sandbox_that_was_never_measured_is_tried_whatever_the_limit() -> None:
    pool = PoolModel((ATTRS,), Limits(4, memory_bytes=MIB), costs=Costs())
    pool.queue.append(ATTRS.top)
    assert plan(pool.planner_input()) == (Create(ATTRS.top),)


def test_a_state_that_was_measured_larger_than_the_limit_is_served_alone() -> None:
    costs = measured((ATTRS, FLASK))
    costs.observe_size(ATTRS.top, Size(memory_bytes=100 * MIB))
    pool = PoolModel((ATTRS, FLASK), Limits(4, memory_bytes=50 * MIB), costs=costs)
    pool.queue += [ATTRS.top, FLASK.top]
    assert pool.plan() == (Create(ATTRS.top),)


@pytest.mark.parametrize("abilities", ABILITIES)
def test_a_cold_pool_keeps_nothing(abilities: Abilities) -> None:
    pool = PoolModel((ATTRS,), Limits(2), abilities, planner=plan_cold)
    for _ in range(4):
        pool.ask(ATTRS.top)
    for _ in range(20):
        pool.plan()
        pool.finish()
        for sandbox in list(pool.leased)[:1]:
            pool.give_back(sandbox)
    assert not pool.queue
    assert pool.made == 4
    assert not pool.idle
    assert Counter({"Create": 4, "Destroy": 4, "unusable": 4}) == pool.counts
