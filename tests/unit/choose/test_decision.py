"""The isolation policy: never below the trust class's minimum, and the cheapest of what is left."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.choose.decision import MOST_ACTIONS, TERMS, Candidate, Cost, Weights, choose, cost_of
from dutyfree.choose.trust import Trust
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Isolation

GIB = 1 << 30

PROCESS = Candidate("process", "process", Isolation.NONE, 0.002, 0.0005)
CELL = Candidate("cell", "cell", Isolation.CONTAINER, 0.006, 0.001)
DOCKER = Candidate("docker", "docker", Isolation.CONTAINER, 0.3, 0.002)
GVISOR = Candidate("gvisor", "gvisor", Isolation.USER_KERNEL, 0.4, 0.005, slowdown=1.9)
MICROVM = Candidate("microvm", "microvm", Isolation.MICROVM, 1.0, 0.003, slowdown=1.05, memory_bytes=GIB // 8)
ALL = (PROCESS, CELL, DOCKER, GVISOR, MICROVM)

examples = settings(max_examples=150, deadline=None)
seconds = st.floats(0, 1e4)
candidates = st.builds(
    Candidate,
    name=st.just(""),
    substrate=st.sampled_from(["cell", "docker", "microvm"]),
    isolation=st.sampled_from(Isolation),
    acquire_s=seconds,
    action_overhead_s=st.floats(0, 10),
    slowdown=st.floats(0.5, 50),
    memory_bytes=st.integers(0, 64 * GIB),
    failure_rate=st.floats(0, 1),
    emulated=st.booleans(),
)
fields_of_candidates = st.lists(candidates, min_size=1, max_size=6).map(
    lambda each: tuple(replace(one, name=f"arm {index}") for index, one in enumerate(each))
)
weights = st.builds(Weights, st.floats(0.01, 100), st.floats(0, 10), st.floats(0, 1e4))
trusts = st.sampled_from(Trust)
lengths = st.integers(1, MOST_ACTIONS)


def close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def allowed(candidate: Candidate, trust: Trust) -> bool:
    """The rule, told a second time."""
    strong_enough = candidate.isolation >= trust.least_isolation
    return strong_enough and not (candidate.emulated and trust in (Trust.UNTRUSTED, Trust.HOSTILE))


# ---- by hand


def test_trust_classes_go_up_the_ladder_of_isolation() -> None:
    least = [trust.least_isolation for trust in Trust]
    assert least == [Isolation.NONE, Isolation.NAMESPACE, Isolation.USER_KERNEL, Isolation.MICROVM]


@pytest.mark.parametrize(
    ("trust", "chosen"), [("trusted", "process"), ("model", "cell"), ("untrusted", "microvm"), ("hostile", "microvm")]
)
def test_each_class_gets_the_cheapest_wall_that_will_do(trust: str, chosen: str) -> None:
    assert choose(ALL, Trust(trust), 50, 60.0).chosen.name == chosen


def test_every_term_by_hand() -> None:
    """100 actions, 30 s of work, 2 GiB: life is 1 + 100 x 0.02 + 30 x 1.5 = 48 s."""
    one = Candidate("one", "cell", Isolation.CONTAINER, 1.0, 0.02, 1.5, 2 * GIB, 0.1)
    cost = cost_of(one, 100, 30.0, Weights(second=2.0, gib_second=0.25, lost_rollout=10.0))
    assert cost.life_s == pytest.approx(48)
    assert [getattr(cost, term) for term in TERMS] == pytest.approx([2, 4, 90, 24, 0.1 * (2 + 4 + 90 + 24 + 10)])
    assert cost.total == pytest.approx(133)


def test_a_crossover_by_hand() -> None:
    """Work aside, 0.1 + 0.5 n and 10 + 0.05 n meet at n = 9.9 / 0.45 = 22."""
    fast = Candidate("starts at once", "docker", Isolation.CONTAINER, 0.1, 0.5)
    lean = Candidate("acts at once", "cell", Isolation.CONTAINER, 10.0, 0.05)
    decision = choose((fast, lean), Trust.MODEL, 50, 0.0)
    (crossing,) = decision.crossovers
    assert (crossing.short, crossing.long) == ("starts at once", "acts at once")
    assert crossing.actions == pytest.approx(22)
    assert [(each.name, each.first, each.last) for each in decision.reigns] == [
        ("starts at once", 1, 22),
        ("acts at once", 23, None),
    ]


def test_a_longer_rollout_has_more_work() -> None:
    """2 s of work for each action: a slowdown of 1.5 costs 1 s an action, and outweighs 8 s from the ninth on."""
    quick = Candidate("quick start", "gvisor", Isolation.USER_KERNEL, 0.0, slowdown=1.5)
    native = Candidate("full speed", "microvm", Isolation.MICROVM, 8.0)
    decision = choose((quick, native), Trust.UNTRUSTED, 10, 20.0)
    assert decision.chosen is native
    assert decision.crossovers[0].actions == pytest.approx(8)


def test_excluded_candidates_are_listed_with_their_cost() -> None:
    decision = choose(ALL, Trust.UNTRUSTED, 50, 60.0)
    told = {each.cost.candidate.name: each.reason for each in decision.excluded}
    assert list(told) == ["process", "cell", "docker"]
    assert told["cell"] == "its wall is container; untrusted takes user-kernel or stronger"
    assert decision.excluded[1].cost.total == cost_of(CELL, 50, 60.0, Weights()).total


def test_the_reason_is_a_sentence_with_the_numbers() -> None:
    assert choose((CELL, DOCKER, PROCESS), Trust.MODEL, 50, 60.0).why == (
        "cell costs the least of 2 with a wall that will do (model takes namespace or stronger): "
        "60.056 against 60.400 of docker, most of it saved on acquire"
    )
    assert choose((CELL, PROCESS), Trust.MODEL, 50, 60.0).why == (
        "cell is the only one with a wall that will do: model takes namespace or stronger"
    )


def test_an_emulated_processor_is_no_wall_for_code_that_may_attack() -> None:
    emulated = replace(MICROVM, emulated=True)
    assert choose((emulated,), Trust.MODEL, 1, 1.0).chosen is emulated
    assert choose((emulated, GVISOR), Trust.UNTRUSTED, 50, 60.0).chosen is GVISOR
    with pytest.raises(Unsupported, match="microvm: its processor is emulated"):
        choose((emulated, GVISOR), Trust.HOSTILE, 50, 60.0)
    assert choose((emulated, GVISOR), Trust.HOSTILE, 50, 60.0, accept_emulated=True).chosen is emulated


def test_of_equal_costs_the_stronger_wall_wins() -> None:
    weak, strong = replace(CELL, name="weak"), replace(CELL, name="strong", isolation=Isolation.VM)
    assert choose((weak, strong), Trust.MODEL, 5, 1.0).chosen is strong
    assert choose((strong, weak), Trust.MODEL, 5, 1.0).chosen is strong


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"acquire_s": -1.0}, {"slowdown": float("nan")}, {"failure_rate": 1.5}, {"memory_bytes": 10**400}):
        with pytest.raises(InvalidRequest, match=f"cell: {next(iter(wrong))}"):
            replace(CELL, **wrong)
    with pytest.raises(InvalidRequest, match="gib_second"):
        Weights(gib_second=float("inf"))
    with pytest.raises(InvalidRequest, match="0 candidates"):
        choose((), Trust.MODEL, 1, 1.0)
    with pytest.raises(InvalidRequest, match="two candidates are called 'cell'"):
        choose((CELL, CELL), Trust.MODEL, 1, 1.0)
    with pytest.raises(InvalidRequest, match="1 to 10000 actions, not 0"):
        choose(ALL, Trust.MODEL, 0, 1.0)
    with pytest.raises(InvalidRequest, match="work"):
        choose(ALL, Trust.MODEL, 1, -1.0)


def test_a_client_can_decide_without_numpy() -> None:
    code = (
        "import sys, dutyfree.choose.decision, dutyfree.choose.candidates; print({'numpy', 'scipy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"set()\n"


# ---- whatever the numbers are


@examples
@given(fields_of_candidates, trusts, lengths, seconds, weights)
def test_never_below_the_minimum_and_never_dearer_than_need_be(
    field: tuple[Candidate, ...], trust: Trust, actions: int, work_s: float, weights: Weights
) -> None:
    may = {each.name for each in field if allowed(each, trust)}
    if not may:
        with pytest.raises(Unsupported):
            choose(field, trust, actions, work_s, weights)
        return
    decision = choose(field, trust, actions, work_s, weights)
    assert {each.candidate.name for each in decision.eligible} == may
    assert {each.cost.candidate.name for each in decision.excluded} == {each.name for each in field} - may
    totals = [each.total for each in decision.eligible]
    assert totals == sorted(totals)
    assert decision.chosen.isolation >= trust.least_isolation


@examples
@given(candidates, lengths, seconds, weights)
def test_terms_add_up_and_cost_is_a_line_in_the_number_of_actions(
    candidate: Candidate, actions: int, work_s: float, weights: Weights
) -> None:
    cost = cost_of(candidate, actions, work_s, weights)
    assert close(cost.total, sum(getattr(cost, term) for term in TERMS))
    assert close(cost.total, cost.at(actions))
    twice = cost_of(candidate, 2 * actions, 2 * work_s, weights)
    assert close(twice.total, cost.at(2 * actions))


@examples
@given(candidates, lengths, seconds, weights, st.data())
def test_cost_grows_with_everything_that_is_bad(
    candidate: Candidate, actions: int, work_s: float, weights: Weights, data: st.DataObject
) -> None:
    worse = data.draw(worse_than(candidate))
    more = actions + data.draw(st.integers(0, 100))
    better, dearer = cost_of(candidate, actions, work_s, weights), cost_of(worse, more, work_s + 1, weights)
    assert dearer.total >= better.total or close(dearer.total, better.total)


@examples
@given(fields_of_candidates, trusts, lengths, seconds, weights, st.data())
def test_a_dominated_candidate_changes_nothing(
    field: tuple[Candidate, ...], trust: Trust, actions: int, work_s: float, weights: Weights, data: st.DataObject
) -> None:
    if not any(allowed(each, trust) for each in field):
        return
    before = choose(field, trust, actions, work_s, weights)
    worse = replace(data.draw(worse_than(before.chosen)), name="dominated")
    after = choose((*field, worse), trust, actions, work_s, weights)
    assert after.chosen is before.chosen
    assert without(after.eligible, "dominated") == list(before.eligible)
    others = [each for each in after.crossovers if "dominated" not in (each.short, each.long)]
    assert others == list(before.crossovers)


@examples
@given(fields_of_candidates, lengths, seconds, weights)
def test_at_a_crossover_the_two_cost_the_same_and_then_change_places(
    field: tuple[Candidate, ...], actions: int, work_s: float, weights: Weights
) -> None:
    decision = choose(field, Trust.TRUSTED, actions, work_s, weights)
    costs = {each.candidate.name: each for each in decision.eligible}
    for crossing in decision.crossovers:
        short, long = costs[crossing.short], costs[crossing.long]
        assert 1 <= crossing.actions <= MOST_ACTIONS
        assert isclose(short.at(crossing.actions), long.at(crossing.actions), rel_tol=1e-6, abs_tol=1e-6)
        assert short.fixed < long.fixed
        assert short.per_action > long.per_action


@examples
@given(fields_of_candidates, lengths, seconds, weights, lengths)
def test_reigns_cover_every_length_and_name_the_cheapest(
    field: tuple[Candidate, ...], actions: int, work_s: float, weights: Weights, at: int
) -> None:
    decision = choose(field, Trust.TRUSTED, actions, work_s, weights)
    ends = [each.last for each in decision.reigns]
    assert [each.first for each in decision.reigns] == [1, *(end + 1 for end in ends[:-1] if end is not None)]
    assert ends[-1] is None
    (reign,) = [each for each in decision.reigns if each.first <= at and (each.last is None or at <= each.last)]
    costs = {each.candidate.name: each.at(at) for each in decision.eligible}
    assert isclose(costs[reign.name], min(costs.values()), rel_tol=1e-9, abs_tol=1e-9)


def without(costs: tuple[Cost, ...], name: str) -> list[Cost]:
    return [each for each in costs if each.candidate.name != name]


def worse_than(candidate: Candidate) -> st.SearchStrategy[Candidate]:
    """No better in anything: its wall is no stronger, and all else no less."""
    more = st.floats(0, 100)
    return st.builds(
        lambda wall, acquire, overhead, slowdown, memory, failure: replace(
            candidate,
            isolation=wall,
            acquire_s=candidate.acquire_s + acquire,
            action_overhead_s=candidate.action_overhead_s + overhead,
            slowdown=candidate.slowdown + slowdown,
            memory_bytes=candidate.memory_bytes + memory,
            failure_rate=min(1.0, candidate.failure_rate + failure),
        ),
        st.sampled_from([wall for wall in Isolation if wall <= candidate.isolation]),
        more,
        more,
        more,
        st.integers(0, GIB),
        st.floats(0, 1),
    )
