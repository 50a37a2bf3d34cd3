"""Verdicts: called when there is something, kept back when there is nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.cli import compare as command
from dutyfree.errors import InvalidRequest
from dutyfree.measure.compare import Comparison, Difference, Gates, Verdict, compare
from dutyfree.measure.compare.shift import adjusted, paired_shift, unpaired_shift
from dutyfree.measure.design.study import Arm, Grid, Study
from dutyfree.measure.results.records import Results, TrialOutcome
from dutyfree.measure.stats.caveats import Code
from dutyfree.measure.stats.metrics import Metric
from support.synthetic_results import NATURES, slowed, synthetic_pair, synthetic_results, write_results

RUNS = 100


def of(found: Comparison, metric: Metric) -> Difference:
    return next(each for each in found.differences if each.metric is metric)


def told(found: Comparison) -> list[Verdict]:
    return [each.verdict for each in (*found.differences, *found.failures) if each.verdict is not Verdict.CANNOT_TELL]


def codes(found: Comparison) -> set[str]:
    return {each.code for each in found.caveats}


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Results, Results]]:
    """Twice the same, one hundred trials each, one hundred times."""
    return [synthetic_pair(1.0, seed=seed) for seed in range(RUNS)]


def test_a_slowdown_of_a_tenth_is_called_in_95_of_100_comparisons(pairs: list[tuple[Results, Results]]) -> None:
    comparisons = [compare(before, slowed(after, 1.1)) for before, after in pairs]
    of_trajectory = [of(each, Metric.TRAJECTORY).verdict for each in comparisons]
    assert sum(each in (Verdict.SLOWER, Verdict.CHANGED) for each in of_trajectory) >= 95
    assert of_trajectory.count(Verdict.SLOWER) >= 90  # in a few, drift of the machine might explain it
    assert sum(bool(each.regressions()) for each in comparisons) == RUNS
    assert not any(Verdict.FASTER in told(each) for each in comparisons)
    ratios = [of(each, Metric.TRAJECTORY).ratio.value for each in comparisons]
    assert np.mean(ratios) == pytest.approx(1.1, abs=0.01)


def test_no_difference_is_called_in_at_most_2_of_100_comparisons(pairs: list[tuple[Results, Results]]) -> None:
    """Of any metric, in either direction, failures included."""
    assert sum(bool(told(compare(before, after))) for before, after in pairs) <= 2


def test_much_noise_hides_a_slowdown_from_some_metrics_but_not_from_all() -> None:
    found = [compare(*synthetic_pair(1.1, seed=seed, spread=0.2)) for seed in range(20)]
    assert sum(bool(each.regressions()) for each in found) >= 0.95 * len(found)
    assert np.mean([of(each, Metric.CREATE).verdict is Verdict.SLOWER for each in found]) < 0.9


@pytest.mark.parametrize(("spread", "effect", "power"), [(0.10, 1.10, 0.99), (0.15, 1.10, 0.92), (0.20, 1.15, 0.95)])
def test_the_same_of_a_single_noisy_number(spread: float, effect: float, power: float) -> None:
    """Not paired, lognormal, one in fifty a straggler. The noisier, the larger a difference must be to be found."""
    numbers, gates = np.random.default_rng(7), Gates()
    called, alarms = 0, 0
    for _ in range(200):
        before, after, same = (
            numbers.normal(0, spread, 100)
            + np.where(numbers.random(100) < 0.02, np.log1p(numbers.exponential(1.25, 100)), 0)
            for _ in range(3)
        )
        slower, equal = unpaired_shift(before, after + np.log(effect)), unpaired_shift(before, same)
        called += slower.p_value < gates.significance and slower.value > np.log1p(gates.effect)
        alarms += equal.p_value < gates.significance and abs(equal.value) > np.log1p(gates.effect)
    assert called >= power * 200
    assert alarms <= 0.02 * 200


def test_a_hundred_comparisons_raise_no_more_false_alarms_than_one() -> None:
    """The correction: without it one in a hundred would be called, in every run."""
    natures = {f"arm{i}": NATURES["cell"] for i in range(15)}
    study = Study("wide", tuple(Arm(arm, arm) for arm in natures), (Grid(20, ("T0",)),), seed=3)
    alarms = 0
    for seed in range(5):
        one, other = (synthetic_results(study, seed=seed + side, natures=natures) for side in (0, 1000))
        alarms += bool(told(compare(one, other)))
    assert alarms == 0


def test_faster_is_slower_seen_from_the_other_side() -> None:
    before, after = synthetic_pair(1.2, seed=1)
    there, back = compare(before, after), compare(after, before)
    for one, other in zip(there.differences, back.differences, strict=True):
        assert one.ratio.value == pytest.approx(1 / other.ratio.value)
        assert one.cliffs_delta == pytest.approx(-other.cliffs_delta)
    assert of(there, Metric.TRAJECTORY).verdict is Verdict.SLOWER
    assert of(back, Metric.TRAJECTORY).verdict is Verdict.FASTER
    assert back.regressions() == ()


def test_a_sure_difference_that_is_too_small_is_not_told() -> None:
    before, after = synthetic_pair(1.03, seed=1, trials=400)
    strict, lax = compare(before, after), compare(before, after, Gates(effect=0.01))
    assert of(strict, Metric.ACTION_TAX).adjusted_p < 0.01
    assert of(strict, Metric.ACTION_TAX).verdict is Verdict.CANNOT_TELL
    assert of(lax, Metric.ACTION_TAX).verdict is Verdict.SLOWER


def test_a_threshold_decides_what_is_a_regression() -> None:
    found = compare(*synthetic_pair(1.1, seed=1))
    assert found.regressions(0.05)
    assert not found.regressions(0.5)
    with pytest.raises(InvalidRequest, match="is not reported"):
        found.regressions(0.02)


def test_trials_of_the_same_plan_are_paired_so_that_their_trajectories_cancel_out() -> None:
    """T2 has tests in some trajectories and none in others: unpaired, a tenth is lost in that."""
    study = Study("tests", (Arm("cell", "cell"),), (Grid(100, ("T2",), lengths=(10,)),), seed=2)
    before, after = (synthetic_results(study, seed=seed) for seed in (1, 2))
    paired = compare(before, slowed(after, 1.1))
    assert paired.paired
    assert of(paired, Metric.TRAJECTORY).verdict is Verdict.SLOWER
    drawn_anew = synthetic_results(replace(study, seed=3), seed=2)
    unpaired = compare(before, drawn_anew)
    assert not unpaired.paired
    assert Code.DIFFERENT_STUDIES in codes(unpaired)


def test_more_failures_are_a_regression_however_fast_the_rest() -> None:
    before, after = synthetic_pair(0.8, seed=1)
    broken = tuple(
        replace(trial, outcome=TrialOutcome.INFRA_FAILED, cause="died") if trial.number % 4 == 0 else trial
        for trial in after.trials
    )
    found = compare(before, replace(after, trials=broken))
    assert [each.verdict for each in found.failures] == [Verdict.FAILS_MORE]
    assert found.regressions() == found.failures
    back = compare(replace(after, trials=broken), before)
    assert [each.verdict for each in back.failures] == [Verdict.FAILS_LESS]


def test_a_condition_of_which_nothing_completes_any_more_fails_the_gate() -> None:
    before, after = synthetic_pair(1.0, seed=1)
    dead = tuple(replace(trial, outcome=TrialOutcome.TIMED_OUT, cause="late") for trial in after.trials)
    found = compare(before, replace(after, trials=dead))
    assert found.differences == ()
    assert found.regressions() == found.failures


def test_what_no_longer_completes_is_lost_however_few_trials_there_were() -> None:
    """Of four trials no test can tell anything; that none of them runs any more needs no test."""
    before, after = synthetic_pair(1.0, seed=1, trials=4)
    dead = tuple(replace(trial, outcome=TrialOutcome.INFRA_FAILED, cause="died") for trial in after.trials)
    found = compare(before, replace(after, trials=dead))
    assert told(found) == []
    assert [each.arm for each in found.lost] == ["cell"]
    assert compare(replace(after, trials=dead), before).lost == ()
    assert compare(before, after).lost == ()


def test_a_wave_that_fails_together_is_one_failure() -> None:
    """64 sandboxes in a wave; taken one by one, 16 of 192 against none would be beyond doubt."""
    study = Study("waves", (Arm("cell", "cell"),), (Grid(192, ("T0",), concurrencies=(8,)),))
    before, after = (synthetic_results(study, seed=seed) for seed in (1, 2))
    first = after.trials[0].block
    broken = tuple(
        replace(trial, outcome=TrialOutcome.INFRA_FAILED, cause="overload")
        if trial.block == first and trial.number % 4 == 0
        else trial
        for trial in after.trials
    )
    (found,) = compare(before, replace(after, trials=broken)).failures
    assert found.after.value == pytest.approx(16 / 192)
    assert found.verdict is Verdict.CANNOT_TELL
    assert Code.CLUSTERED in {each.code for each in found.caveats}


def test_few_trials_cannot_tell() -> None:
    found = compare(*synthetic_pair(3.0, seed=1, trials=4))
    assert told(found) == []
    assert all(Code.FEW_SANDBOXES in {each.code for each in one.caveats} for one in found.differences)


def test_other_hosts_other_engines_and_cut_studies_are_caveats() -> None:
    before, after = synthetic_pair(1.0, seed=1, trials=12)
    after = replace(
        after,
        host={**after.host, "kernel": "7.0"},
        arms={"cell": {"version": "2.0"}},
        study=replace(after.study, evict=("page-cache",)),
        cut_short="interrupted",
    )
    found = compare(before, after)
    wanted = {Code.DIFFERENT_HOSTS, Code.DIFFERENT_ARMS, Code.DIFFERENT_STUDIES, Code.CUT_SHORT}
    assert wanted <= codes(found)
    assert "kernel: 6.8.0 / 7.0" in next(each.text for each in found.caveats if each.code == Code.DIFFERENT_HOSTS)


def renamed(results: Results) -> Results:
    """The same, as another version of the workload would have it."""
    trials = (
        replace(trial, actions=tuple(replace(action, name="other") for action in trial.actions))
        for trial in results.trials
    )
    return replace(results, trials=tuple(trials))


def test_a_workload_that_was_changed_is_refused() -> None:
    before, after = synthetic_pair(1.0, seed=1, trials=12)
    with pytest.raises(InvalidRequest, match="workload 'T1' is not the same on both sides"):
        compare(before, renamed(after))


def test_other_actions_of_another_plan_are_a_caveat() -> None:
    before, _ = synthetic_pair(1.0, seed=1, trials=12)
    other, _ = synthetic_pair(1.0, seed=2, trials=12)
    assert Code.DIFFERENT_ACTIONS in codes(compare(before, renamed(other)))


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no condition in common"):
        compare(synthetic_pair(1.0, seed=1, trials=6)[0], synthetic_pair(1.0, seed=1, trials=6, arm="docker")[0])


def test_what_only_one_side_has_is_named() -> None:
    arms = (Arm("cell", "cell"), Arm("process", "process"))
    grid = (Grid(12, ("T1",), lengths=(10,)),)
    both = synthetic_results(Study("both", arms, grid))
    one = synthetic_results(Study("one", arms[:1], grid))
    less, more = compare(both, one), compare(one, both)
    assert [each.arm for each in less.only_before] == [each.arm for each in less.lost] == ["process"]
    assert [each.arm for each in more.only_after] == ["process"]
    assert more.lost == ()


@given(st.lists(st.floats(0, 1), max_size=50))
def test_a_correction_makes_nothing_surer_and_keeps_the_order(p_values: list[float]) -> None:
    found = adjusted(p_values)
    assert all(one <= other <= 1 for one, other in zip(p_values, found, strict=True))
    ranked = [found[index] for index in np.argsort(p_values, kind="stable")]
    assert ranked == sorted(ranked)


@given(st.lists(st.floats(-3, 3), min_size=6, max_size=40), st.floats(-2, 2))
def test_a_shift_is_found_where_it_was_made(values: list[float], by: float) -> None:
    before = np.array(values)
    for found in (paired_shift(before, before + by), unpaired_shift(before, before + by)):
        assert found.low is not None
        assert found.high is not None
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9
    assert paired_shift(before, before + by).value == pytest.approx(by, abs=1e-9)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("results")
    before, slower = synthetic_pair(1.1, seed=1)
    _, same = synthetic_pair(1.0, seed=1)
    dead = tuple(replace(trial, outcome=TrialOutcome.TIMED_OUT, cause="late") for trial in same.trials)
    named = {"before": before, "slower": slower, "same": same, "dead": replace(same, trials=dead)}
    return {name: write_results(results, parent / name) for name, results in named.items()}


def run_command(*arguments: str) -> int:
    """The command as the command line calls it."""
    import argparse

    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    options = parser.parse_args(["compare", *arguments])
    return int(options.execute(options))


def test_the_exit_code_is_a_gate(directories: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, slower, same = (str(directories[name]) for name in ("before", "slower", "same"))
    assert run_command(before, slower) == 1
    output = capsys.readouterr().out
    assert "slower" in output
    assert "regressions past 5" in output
    assert run_command(before, same) == 0
    assert "regressions past 5.0 %: none" in capsys.readouterr().out
    assert run_command(before, slower, "--threshold", "50") == 0
    assert run_command(slower, before) == 0


def test_what_no_longer_runs_fails_the_gate(directories: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, dead = str(directories["before"]), str(directories["dead"])
    assert run_command(before, dead) == 1
    output = capsys.readouterr().out
    assert "no longer completes: cell: T1, 4 actions, cold" in output
    assert "conditions that no longer complete a trial: 1;" in output
    assert run_command(before, dead, "--json") == 1
    assert json.loads(capsys.readouterr().out)["lost"][0]["arm"] == "cell"
    assert run_command(dead, before, "--allow-missing") == 0


def test_a_threshold_below_the_effect_is_shown_or_refused(
    directories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, slower = str(directories["before"]), str(directories["slower"])
    assert run_command(before, slower, "--threshold", "1") == 1
    assert "differences over 1.0 %" in capsys.readouterr().out
    with pytest.raises(InvalidRequest, match="--threshold 1 is below --effect 5"):
        run_command(before, slower, "--threshold", "1", "--effect", "5")


def test_json_has_everything(directories: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(directories["before"]), str(directories["slower"]), "--json", "--metric", "trajectory") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["regression"] is True
    assert [each["metric"] for each in told["differences"]] == ["trajectory"]
    assert told["differences"][0]["verdict"] == "slower"
    assert told["gates"] == {"significance": 0.01, "effect": 0.05, "failure_effect": 0.01}


def test_a_metric_that_does_not_exist_is_refused(directories: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequest, match="there is no metric 'speed'"):
        run_command(str(directories["before"]), str(directories["same"]), "--metric", "speed")
