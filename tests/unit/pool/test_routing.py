"""Routes: the closest idle sandbox, and what the control policies do instead."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.planner_input import Abilities, Idle
from dutyfree.pool.routing import COLD_RUNG, Policy, Route, route
from dutyfree.pool.state import Ladder, State
from support.pool_model import IMAGES, STAGES, ladder, measured

ATTRS = ladder("b", "attrs", "deps")
FLASK = ladder("b", "flask")
NAMES = ATTRS.names


def idle_of(*states: State) -> dict[State, list[Idle]]:
    """Sandboxes called 0, 1, 2 ..., the first of which is idle for longest."""
    found: dict[State, list[Idle]] = {}
    for number, state in enumerate(states):
        found.setdefault(state, []).append(Idle(str(number), state, state.cut(1), float(number)))
    return found


def test_just_what_is_wanted_is_taken_longest_idle_first() -> None:
    found = route(ATTRS, idle_of(ATTRS.top, ATTRS.top), measured([ATTRS]), IMAGES, Policy.LOCALITY)
    assert found == Route("0", None, (), 0.0, "stage-2", "just what is wanted")


def test_the_prefix_with_the_least_to_add_is_taken() -> None:
    costs = measured([ATTRS], create_s=10.0, stage_s=2.0)
    found = route(ATTRS, idle_of(ATTRS.rungs[0], ATTRS.rungs[1]), costs, IMAGES)
    assert (found.sandbox, found.missing, found.rung) == ("1", ("stage-2",), "stage-1")
    assert found.expected_s == pytest.approx(2.0)


def test_a_creation_from_an_image_is_taken_where_stages_are_dearer() -> None:
    found = route(ATTRS, idle_of(ATTRS.rungs[1]), measured([ATTRS], create_s=1.0, stage_s=2.0), IMAGES)
    assert (found.sandbox, found.evict, found.missing, found.rung) == (None, None, (), COLD_RUNG)
    assert found.expected_s == pytest.approx(1.0)


def test_unless_there_is_no_room_for_it() -> None:
    costs = measured([ATTRS], create_s=1.0, stage_s=2.0)
    assert route(ATTRS, idle_of(ATTRS.rungs[1]), costs, IMAGES, may_create=False).sandbox == "0"
    assert route(ATTRS, {}, costs, IMAGES, may_create=False).sandbox is None


def test_without_images_any_prefix_is_closer_than_a_new_one() -> None:
    costs = measured([ATTRS], create_s=0.001, stage_s=100.0)
    assert route(ATTRS, idle_of(ATTRS.rungs[0]), costs, STAGES).sandbox == "0"
    cold = route(ATTRS, {}, costs, STAGES)
    assert (cold.sandbox, cold.missing) == (None, NAMES[1:])
    assert cold.expected_s == pytest.approx(200.001)


def test_nothing_is_inherited_that_was_not_asked_for() -> None:
    costs = measured([ATTRS, FLASK], create_s=100.0, stage_s=0.1)
    assert route(FLASK, idle_of(ATTRS.top, ATTRS.rungs[1]), costs, IMAGES).sandbox is None
    assert route(ladder("b"), idle_of(FLASK.top), costs, IMAGES).sandbox is None


def test_without_locality_the_one_idle_for_longest_is_taken_or_ended() -> None:
    costs = measured([ATTRS, FLASK])
    promoted = route(ATTRS, idle_of(ATTRS.rungs[0], ATTRS.top), costs, IMAGES, Policy.NO_LOCALITY)
    assert (promoted.sandbox, promoted.evict, promoted.missing) == ("0", None, NAMES[1:])
    ended = route(ATTRS, idle_of(FLASK.top, ATTRS.top), costs, IMAGES, Policy.NO_LOCALITY)
    assert (ended.sandbox, ended.evict, ended.missing) == (None, "0", ())
    none = route(ATTRS, {ATTRS.top: []}, costs, IMAGES, Policy.NO_LOCALITY)
    assert (none.sandbox, none.evict) == (None, None)


def test_cold_is_always_a_new_one() -> None:
    found = route(ATTRS, idle_of(ATTRS.top), measured([ATTRS]), IMAGES, Policy.COLD)
    assert (found.sandbox, found.evict, found.rung) == (None, None, COLD_RUNG)


TREE = [ladder(*names) for names in (["b"], ["b", "x"], ["b", "x", "y"], ["b", "z"], ["c"], ["c", "x"])]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(TREE),
    st.lists(st.sampled_from([each.top for each in TREE]), max_size=8),
    st.dictionaries(st.sampled_from("bcxyz"), st.floats(0.001, 100), max_size=5),
    st.dictionaries(st.sampled_from("bcxyz"), st.floats(0.001, 100), max_size=5),
    st.booleans(),
    st.sampled_from(list(Policy)),
)
def test_every_route_leads_to_just_what_is_wanted_and_the_best_is_taken(
    wanted: Ladder,
    states: list[State],
    creations: dict[str, float],
    stages: dict[str, float],
    images: bool,
    policy: Policy,
) -> None:
    costs = Costs()
    for digest, seconds in creations.items():
        costs.observe(Step("create", digest), seconds)
    for digest, seconds in stages.items():
        costs.observe(Step.stage(digest), seconds)
    abilities, idle = Abilities(images=images), idle_of(*states)
    found = route(wanted, idle, costs, abilities, policy)
    assert found == route(wanted, idle, costs, abilities, policy)
    if found.sandbox is not None:
        state = states[int(found.sandbox)]
        assert state.begins(wanted.top)
        assert found.missing == wanted.missing(state)
        assert found.rung == wanted.name_of(state)
        assert found.expected_s == pytest.approx(costs.stages_s(wanted, state))
    if policy is Policy.LOCALITY:
        ways = [costs.stages_s(wanted, state) for state in states if state.begins(wanted.top)]
        assert found.expected_s == pytest.approx(min([*ways, costs.rebuild_s(wanted.top, images=images)]))


def test_deeper_is_never_further() -> None:
    costs = measured([ATTRS], stage_s=1.0, create_s=100.0)
    expected = [route(ATTRS, idle_of(rung), costs, IMAGES).expected_s for rung in ATTRS.rungs]
    assert all(before > after for before, after in pairwise(expected))
