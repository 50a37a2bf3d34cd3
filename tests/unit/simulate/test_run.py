"""The simulator keeps what it promises: same seed, same outcome; nothing lost, no limit exceeded; theory agrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.pool.routing import Policy
from dutyfree.pool.size import Size
from dutyfree.simulate import Outcome, PoolModel, default_scenario, load_scenario, simulate
from dutyfree.simulate.clock import Contention
from dutyfree.simulate.load import Arrivals
from support.repository import ROOT
from support.scenarios import FAILING, LATENCIES, erlang_c_wait_s, queue_of, scenario, steps

EXAMPLES = ROOT / "examples" / "simulate"


def test_the_same_seed_gives_the_same_outcome_and_another_one_another() -> None:
    first, again = simulate(scenario()), simulate(scenario())
    assert first == again
    assert simulate(scenario(seed=2)).readiness != first.readiness


@pytest.mark.parametrize("policy", Policy)
def test_every_trajectory_ends_exactly_once(policy: Policy) -> None:
    outcome = simulate(scenario(), policy)
    assert outcome.trajectories == outcome.completed == 3 * 8 * 4
    assert not outcome.failures
    assert sum(outcome.hits.values()) == outcome.readiness.count == outcome.trajectories


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(Policy),
    sandboxes=st.integers(1, 12),
    at_once=st.integers(1, 4),
    nodes=st.integers(1, 3),
    reset=st.booleans(),
    images=st.booleans(),
    announced=st.booleans(),
    fails=st.booleans(),
    concurrency=st.none() | st.integers(1, 12),
    memory=st.none() | st.integers(1, 12),
    exponent=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_scenario_limits_hold_and_nothing_is_lost(
    policy: Policy,
    sandboxes: int,
    at_once: int,
    nodes: int,
    reset: bool,
    images: bool,
    announced: bool,
    fails: bool,
    concurrency: int | None,
    memory: int | None,
    exponent: float,
    seed: int,
) -> None:
    size = Size(memory_bytes=10)
    limits = Limits(sandboxes, None if memory is None else 10 * memory, at_once=at_once)
    outcome = simulate(
        scenario(
            steps(steps=2, prompts=3, announced=announced, concurrency=concurrency),
            pool=PoolModel(limits, Abilities(reset=reset, images=images)),
            latencies=replace(LATENCIES, size=size, **({"failures": FAILING} if fails else {})),
            nodes=nodes,
            contention=Contention(2.0, exponent),
            seed=seed,
        ),
        policy,
    )
    assert outcome.trajectories == 2 * 3 * 4
    assert outcome.completed + sum(outcome.failures.values()) == outcome.trajectories
    assert fails or not outcome.failures
    assert outcome.most_sandboxes <= min(sandboxes, sandboxes if memory is None else memory)
    assert outcome.most_busy <= at_once
    assert sum(outcome.hits.values()) == outcome.readiness.count
    assert outcome.readiness.count + sum(outcome.failures.values()) - outcome.failures.get("lease", 0) == 24
    assert outcome.idle_s >= 0


def test_failures_have_causes_and_works_that_fail_are_counted() -> None:
    outcome = simulate(scenario(steps(steps=20), latencies=replace(LATENCIES, failures=FAILING)))
    assert set(outcome.failures) <= {"lease", "create", "promote", "reset", "destroy"}
    assert 0.02 < outcome.failures["lease"] / outcome.trajectories < 0.09
    assert outcome.lost["create"]
    assert outcome.lost["reset"]


def test_who_waits_too_long_ends_by_capacity() -> None:
    pool = PoolModel(Limits(2, at_once=1), Abilities(reset=True, images=True), acquire_timeout_s=5.0)
    outcome = simulate(scenario(pool=pool))
    assert outcome.failures["capacity"] > 0
    assert outcome.completed + outcome.failures["capacity"] == outcome.trajectories
    assert outcome.readiness.most_s <= 5.1


@pytest.fixture(scope="module")
def arms() -> dict[Policy, Outcome]:
    """What becomes of the default scenario."""
    return {policy: simulate(default_scenario(), policy) for policy in Policy}


def test_locality_beats_its_controls_where_recipes_are_popular_by_zipf(arms: dict[Policy, Outcome]) -> None:
    mean_s = {policy: outcome.readiness.mean_s for policy, outcome in arms.items()}
    assert mean_s[Policy.NO_LOCALITY] > 1.5 * mean_s[Policy.LOCALITY]
    assert mean_s[Policy.COLD] > 1.5 * mean_s[Policy.LOCALITY]
    assert arms[Policy.COLD].hit_rate == 0
    assert arms[Policy.COLD].waste < 1e-5  # of works that were begun a second time


def test_announced_demand_is_ready_when_it_comes(arms: dict[Policy, Outcome]) -> None:
    assert arms[Policy.LOCALITY].hit_rate >= 0.99


def test_on_many_nodes_locality_needs_fewer_creations() -> None:
    load = steps(steps=6, prompts=40, training_s=60.0, announced=False)
    pool = PoolModel(Limits(12), Abilities(reset=True, images=True), longest_tick_s=30.0)
    wide = scenario(load, nodes=20, pool=pool)
    local, spread = simulate(wide), simulate(wide, Policy.NO_LOCALITY)
    assert local.operations["create"] < 0.9 * spread.operations["create"]
    assert local.hit_rate > spread.hit_rate


@pytest.mark.parametrize(("servers", "utilisation"), [(1, 0.5), (8, 0.75)])
def test_queues_are_as_long_as_erlang_says(servers: int, utilisation: float) -> None:
    outcome = simulate(queue_of(servers, utilisation, trajectories=15_000))
    # Little's law: under way on average are as many as arrive while one is.
    used = outcome.leased_s / outcome.makespan_s / servers
    assert used == pytest.approx(utilisation, rel=0.03)
    # Waits depend on the utilisation so much that the one that came of the dice has to be put into the formula.
    wait_s = erlang_c_wait_s(servers, used, outcome.leased_s / outcome.trajectories)
    assert outcome.readiness.mean_s == pytest.approx(wait_s, rel=0.1)


def test_steps_follow_each_other_and_training_is_between_them() -> None:
    one, three = simulate(scenario(steps(steps=1))), simulate(scenario(steps(steps=3)))
    assert one.makespan_s > 20.0
    assert three.makespan_s > one.makespan_s + 2 * 20.0


def test_a_step_need_not_wait_for_its_stragglers() -> None:
    whole, early = simulate(scenario(steps(steps=10))), simulate(scenario(steps(steps=10, quantile=0.8)))
    assert early.trajectories == whole.trajectories
    assert early.makespan_s < whole.makespan_s


def test_the_client_has_no_more_under_way_than_it_wants() -> None:
    outcome = simulate(scenario(steps(concurrency=5)))
    assert outcome.leased_s <= 5 * outcome.makespan_s
    assert outcome.queue.mean_s < simulate(scenario()).queue.mean_s


def test_all_policies_meet_the_same_load() -> None:
    held_s = {simulate(scenario(), policy).leased_s for policy in Policy}
    assert max(held_s) == pytest.approx(min(held_s))


def test_contention_makes_things_slower_and_is_learned_as_a_cost() -> None:
    load = Arrivals(300, steps().behaviour, rate_per_s=2.0)
    free = simulate(scenario(load, sandboxes=64, at_once=16), Policy.COLD)
    shared = simulate(scenario(load, sandboxes=64, at_once=16, contention=Contention(0.2, 1.0)), Policy.COLD)
    assert shared.readiness.mean_s > 1.5 * free.readiness.mean_s


def test_the_default_scenario_is_the_example() -> None:
    assert load_scenario(EXAMPLES / "grpo-one-node.toml") == default_scenario()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_can_be_read(path: Path) -> None:
    assert load_scenario(path).load.trajectories >= 5000
