"""A machine that drifts raises no alarm; what is slower than drift explains does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.cli.main import main
from dutyfree.measure.compare import Comparison, Verdict, compare, compare_arms
from dutyfree.measure.compare.machine_drift import FOLLOWS, machine_change, unexplained
from dutyfree.measure.design.study import Arm, Grid, Study
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats.caveats import Code
from support.synthetic_results import (
    NATURES,
    drifting,
    slowed,
    stretched,
    synthetic_pair,
    synthetic_results,
    write_results,
)

RUNS = 50
TRIALS = 60
Walk = Callable[[np.random.Generator], np.ndarray]


def random_walk(numbers: np.random.Generator) -> np.ndarray:
    return numbers.normal(0, 0.03, 2 * TRIALS).cumsum()


def step(numbers: np.random.Generator) -> np.ndarray:
    """A neighbour arrives at some moment, and stays."""
    return np.where(np.arange(2 * TRIALS) >= numbers.integers(2 * TRIALS), numbers.choice([-0.3, 0.3]), 0.0)


def trend(numbers: np.random.Generator) -> np.ndarray:
    return np.linspace(0, numbers.choice([-0.4, 0.4]), 2 * TRIALS)


DRIFTS = pytest.mark.parametrize("drift", [random_walk, step, trend])


def twice_the_same(drift: Walk, seed: int) -> tuple[Results, Results]:
    """Two runs, one after the other. How closely the arm follows the machine differs from run to run of the test."""
    numbers = np.random.default_rng(seed)
    machine, follows = drift(numbers), numbers.uniform(0.5, 1.4)
    noise = numbers.normal(0, 0.08, 2 * TRIALS)  # of the reference alone, as on a busy machine
    first, second = synthetic_pair(1.0, seed=seed, trials=TRIALS)
    return (
        drifting(drifting(first, dict(enumerate(machine[:TRIALS])), follows), dict(enumerate(noise[:TRIALS])), 0),
        drifting(drifting(second, dict(enumerate(machine[TRIALS:])), follows), dict(enumerate(noise[TRIALS:])), 0),
    )


def versions(drift: Walk, seed: int, effect: float) -> Results:
    """One study of two arms, interleaved, on the same machine; the second takes `effect` times as long."""
    natures = {"old": NATURES["cell"], "new": NATURES["cell"]}
    study = Study("two", (Arm("old", "cell"), Arm("new", "cell")), (Grid(TRIALS, ("T1",), lengths=(4,)),), seed=seed)
    results = synthetic_results(study, seed=seed, natures=natures)
    trials = (stretched(trial, effect if trial.condition.arm == "new" else 1.0) for trial in results.trials)
    machine = dict(enumerate(drift(np.random.default_rng(seed))[:TRIALS]))
    return drifting(replace(results, trials=tuple(trials)), machine)


def verdicts(found: Comparison) -> set[Verdict]:
    return {each.verdict for each in found.differences}


@DRIFTS
def test_a_drift_between_two_runs_of_the_same_is_no_alarm(drift: Walk) -> None:
    comparisons = [compare(*twice_the_same(drift, seed)) for seed in range(RUNS)]
    assert sum(bool(verdicts(each) & {Verdict.SLOWER, Verdict.FASTER}) for each in comparisons) <= 0.02 * RUNS
    # The gates alone would have raised an alarm: it is the drift that is in the way.
    assert sum(Verdict.CHANGED in verdicts(each) for each in comparisons) >= 0.5 * RUNS


@DRIFTS
def test_interleaved_trials_find_a_regression_through_the_same_drift(drift: Walk) -> None:
    found = [compare_arms(versions(drift, seed, 1.25), {"old": "new"}) for seed in range(20)]
    assert all(each.regressions() for each in found)
    assert all(each.interleaved and verdicts(each) <= {Verdict.SLOWER, Verdict.CANNOT_TELL} for each in found)


@DRIFTS
def test_interleaved_trials_of_the_same_raise_no_alarm(drift: Walk) -> None:
    found = [compare_arms(versions(drift, seed, 1.0), {"old": "new"}) for seed in range(RUNS)]
    assert sum(verdicts(each) != {Verdict.CANNOT_TELL} for each in found) <= 0.02 * RUNS


def test_a_slowdown_beyond_the_drift_is_an_alarm_between_two_runs() -> None:
    found = []
    for seed in range(20):
        before, after = synthetic_pair(1.0, seed=seed)
        machine = dict.fromkeys(after.references, 0.1)
        found.append(compare(before, drifting(slowed(after, 1.4), machine)))
    assert sum(bool(each.regressions()) for each in found) >= 19
    assert all(each.machine is not None and 1.05 < each.machine.value < 1.16 for each in found)


def test_without_a_reference_a_difference_has_no_known_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = (replace(each, references={}) for each in synthetic_pair(1.5, seed=1))
    found = compare(before, after)
    assert found.machine is None
    assert found.regressions() == ()
    assert Verdict.CHANGED in verdicts(found)
    assert all(each.ratio.low is None and each.drift_p == 1 for each in found.differences)
    assert Code.NOT_INTERLEAVED in {each.code for each in found.caveats}
    one, other = (write_results(each, tmp_path / name) for name, each in (("a", before), ("b", after)))
    assert main(["compare", str(one), str(other)]) == 0
    printed = capsys.readouterr().out
    assert "changed, cause unknown: " in printed
    assert "dutyfree bench --against" in printed


def test_two_arms_of_one_study_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_results(versions(step, 1, 1.25), tmp_path / "r"))
    assert main(["compare", path, "--between", "old", "new"]) == 1
    assert "of interleaved trials" in capsys.readouterr().out
    assert main(["compare", path, "--between", "new", "old"]) == 0
    assert main(["compare", path, "--between", "old", "newer"]) == 2
    assert main(["compare", path]) == 2
    assert main(["compare", path, path, "--between", "old", "new"]) == 2


def logs(values: list[float]) -> Mapping[int, float]:
    return dict(enumerate(values))


SERIES = st.lists(st.floats(-1, 1), min_size=8, max_size=40)


@given(SERIES, SERIES, st.booleans())
def test_both_ends_are_in_the_interval_and_the_sides_can_be_swapped(
    one: list[float], other: list[float], paired: bool
) -> None:
    before, after, machine = logs(one), logs(other), ({n: 0.1 * n for n in range(40)}, dict.fromkeys(range(40), 0.3))
    there = unexplained(before, after, machine, paired=paired)
    back = unexplained(after, before, machine[::-1], paired=paired)
    assert there is not None
    assert back is not None
    assert there.low <= there.value <= there.high
    assert 0 <= there.p_value <= 1
    assert back.value == pytest.approx(-there.value, abs=1e-9)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-9)


@given(SERIES, st.floats(-1, 1), st.floats(0, FOLLOWS))
def test_a_change_that_follows_the_machine_leaves_nothing(values: list[float], by: float, follows: float) -> None:
    before, after = logs(values), logs([value + follows * by for value in values])
    machine = (dict.fromkeys(before, 0.0), dict.fromkeys(before, by))
    found = unexplained(before, after, machine, paired=True)
    assert found is not None
    assert found.value == pytest.approx(0, abs=1e-9)


def test_a_part_of_a_run_without_a_reference_leaves_everything_open() -> None:
    values = logs([0.0] * 20)
    assert unexplained(values, values, (values, {1: 0.0}), paired=True) is None
    assert unexplained(logs([0.0] * 7), values, (values, values), paired=False) is None
    assert machine_change({}, values) is None
    change = machine_change(values, {n: log(1.2) for n in values})
    assert change is not None
    assert change[0] == pytest.approx(log(1.2))
