"""The plan of a study: what is run, how often, in which order."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.defaults import QUICK_LENGTH, QUICK_TRIALS, default_study, quick
from dutyfree.measure.design.file import with_null
from dutyfree.measure.design.plan import WAVE, Block, plan, remaining, size
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth

NAMES = ("a", "b", "c", "d")


@st.composite
def studies(draw: st.DrawFn) -> Study:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    bound = st.none() | st.integers(2, 6)
    arms = tuple(Arm(name, name, max_trials=draw(bound), max_length=draw(bound)) for name in names)
    if draw(st.booleans()):
        arms = with_null(arms)
    grid = st.builds(
        Grid,
        trials=st.integers(2, 8),
        workloads=st.lists(st.sampled_from(("T0", "T1")), min_size=1, max_size=2, unique=True).map(tuple),
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True).map(tuple),
        warmths=st.lists(st.sampled_from(Warmth), min_size=1, max_size=2, unique=True).map(tuple),
        concurrencies=st.lists(st.sampled_from((1, 2)), min_size=1, max_size=2, unique=True).map(tuple),
        arms=st.lists(st.sampled_from(names), max_size=2, unique=True).map(tuple),
    )
    return Study("s", arms, tuple(draw(st.lists(grid, min_size=1, max_size=3))), seed=draw(st.integers(0, 9)))


def expected(study: Study) -> Counter[Condition]:
    """How often each condition has to be run, the slow way."""
    counts: Counter[Condition] = Counter()
    for grid in study.grids:
        for arm in study.arms:
            for workload in grid.workloads:
                for length in grid.lengths:
                    for warmth in grid.warmths:
                        for concurrency in grid.concurrencies:
                            is_in = not grid.arms or arm.name in grid.arms or arm.substrate == "null"
                            if is_in and (arm.max_length is None or length <= arm.max_length):
                                condition = Condition(arm.name, workload, length, warmth, concurrency)
                                trials = min(grid.trials, arm.max_trials or grid.trials)
                                counts[condition] = max(counts[condition], trials)
    return counts


def setting(condition: Condition) -> tuple[object, ...]:
    return condition.workload, condition.length, condition.warmth, condition.concurrency


@given(studies())
def test_every_condition_is_run_as_often_as_the_study_says(study: Study) -> None:
    found = Counter(trial.condition for block in plan(study) for trial in block.trials)
    assert found == expected(study)


@given(studies())
def test_numbers_name_trials_in_the_order_in_which_they_are_run(study: Study) -> None:
    blocks = plan(study)
    assert [trial.number for block in blocks for trial in block.trials] == list(range(size(blocks)))
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert all(trial.block == block.number for block in blocks for trial in block.trials)


@given(studies())
def test_within_a_block_the_arm_alone_differs(study: Study) -> None:
    for block in plan(study):
        assert len({setting(trial.condition) for trial in block.trials}) == 1
        shares = [list(share) for _, share in groupby(block.trials, key=lambda trial: trial.condition.arm)]
        assert len(shares) == len({trial.condition.arm for trial in block.trials}), "an arm's trials are together"
        most = max(shares, key=len)
        for share in shares:
            assert [trial.seed for trial in share] == [trial.seed for trial in most][: len(share)]
        concurrency = block.trials[0].condition.concurrency
        assert len(most) <= (1 if concurrency == 1 else WAVE * concurrency)


@given(studies())
def test_a_study_that_is_cut_short_is_balanced(study: Study) -> None:
    """After the first of each there is, at any moment, a share of the rest that every setting has had, up to one."""
    blocks = plan(study)
    total = Counter(setting(block.trials[0].condition) for block in blocks)
    so_far: Counter[tuple[object, ...]] = Counter()
    for position, block in enumerate(blocks):
        so_far[setting(block.trials[0].condition)] += 1
        assert (position < len(total)) == (so_far[setting(block.trials[0].condition)] == 1), "one of each comes first"
        several = [each for each in total if total[each] > 1 and position >= len(total)]
        least = max(((so_far[each] - 2) / (total[each] - 1) for each in several), default=0)
        most = min((so_far[each] / (total[each] - 1) for each in several), default=1)
        assert least <= most


@given(studies())
def test_the_null_arm_takes_part_in_every_block(study: Study) -> None:
    if any(arm.substrate == "null" for arm in study.arms):
        for block in plan(study):
            assert "null" in {trial.condition.arm for trial in block.trials}


@given(studies(), st.data())
def test_what_remains_is_the_plan_without_what_is_done(study: Study, data: st.DataObject) -> None:
    blocks = plan(study)
    done = data.draw(st.sets(st.integers(0, max(0, size(blocks) - 1))))
    left = remaining(blocks, done)
    kept = [trial for block in left for trial in block.trials]
    assert kept == [trial for block in blocks for trial in block.trials if trial.number not in done]
    assert remaining(blocks, range(size(blocks))) == ()
    assert all(block.trials for block in left)


@given(studies())
def test_equal_studies_have_equal_plans(study: Study) -> None:
    assert plan(study) == plan(study)


def test_another_seed_gives_another_order_and_other_trajectories() -> None:
    grids = (Grid(20, ("T0", "T1"), lengths=(1, 10)),)
    arms = tuple(Arm(name, name) for name in NAMES)
    one, other = (plan(Study("s", arms, grids, seed=seed)) for seed in (1, 2))
    assert _order(one) != _order(other)
    assert not _seeds(one) & _seeds(other)


def test_another_arm_leaves_the_trajectories_alone() -> None:
    grids = (Grid(5, ("T0",), lengths=(10,)),)
    few, many = (plan(Study("s", tuple(Arm(n, n) for n in names), grids)) for names in (NAMES[:1], NAMES))
    assert _seeds(few) == _seeds(many)


def test_waves_are_of_equal_size_so_that_each_has_company() -> None:
    blocks = plan(Study("s", (Arm("a", "a"), Arm("b", "b")), (Grid(WAVE * 4 + 1, ("T0",), concurrencies=(4,)),)))
    assert [[len(trials) for trials in block.by_arm()] for block in blocks] == [[16, 16], [17, 17]]


def test_an_arm_that_is_never_so_many_at_once_takes_no_part_in_that() -> None:
    arms = (Arm("a", "a"), Arm("b", "b", max_trials=3))
    with pytest.raises(InvalidRequest, match="'b' are never 4 at once"):
        Study("s", arms, (Grid(8, ("T0",), concurrencies=(1, 4)),))
    assert Study("s", arms, (Grid(8, ("T0",), concurrencies=(4,), arms=("a",)), Grid(8, ("T0",))))


def test_arms_are_not_always_in_the_same_order() -> None:
    blocks = plan(Study("s", tuple(Arm(name, name) for name in NAMES), (Grid(30, ("T0",)),)))
    firsts = Counter(block.trials[0].condition.arm for block in blocks)
    assert set(firsts) == set(NAMES)


@pytest.mark.parametrize("able", [[], ["cell"]])
def test_the_default_study_names_only_arms_that_are_able(able: list[str]) -> None:
    study = default_study([Arm("process", "process"), Arm("cell", "cell")], able)
    conditions = {trial.condition for block in plan(study) for trial in block.trials}
    assert {each.arm for each in conditions if each.workload != "T0"} - {"null"} == set(able)
    assert {each.arm for each in conditions if each.workload == "T0"} == {"null", "process", "cell"}


def test_a_quick_study_has_every_combination_a_few_times() -> None:
    study = default_study([Arm("cell", "cell")], ["cell"])
    counts = Counter(trial.condition for block in plan(quick(study)) for trial in block.trials)
    assert all(count == max(QUICK_TRIALS, condition.concurrency) for condition, count in counts.items())
    assert max(condition.length for condition in counts) == QUICK_LENGTH


def _order(blocks: tuple[Block, ...]) -> list[Condition]:
    return [trial.condition for block in blocks for trial in block.trials]


def _seeds(blocks: tuple[Block, ...]) -> set[int]:
    return {trial.seed for block in blocks for trial in block.trials}
