"""An analysis of results of which the truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.compare import compare
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth
from dutyfree.measure.project import MeasuredLatencies, Scale, project
from dutyfree.measure.results.records import Results, Trial, TrialOutcome
from dutyfree.measure.stats.analysis import Analysis, Metric, Setting, analyse
from dutyfree.measure.stats.caveats import Code
from dutyfree.measure.stats.conditions import composition
from dutyfree.measure.stats.drift import drift
from dutyfree.measure.stats.estimate import Caveat
from dutyfree.measure.stats.residue import residue
from dutyfree.model import Phase
from support.synthetic_results import NATURES, stretched, synthetic_results


@pytest.fixture(scope="module")
def results() -> Results:
    return synthetic_results()


@pytest.fixture(scope="module")
def analysis(results: Results) -> Analysis:
    return analyse(results)


def small(**changes: object) -> Results:
    """Two arms, thirty trials."""
    study = Study("small", (Arm("process", "process"), Arm("cell", "cell")), (Grid(30, ("T1",), lengths=(4,)),), seed=5)
    return replace(synthetic_results(study), **changes)  # type: ignore[arg-type]


def codes(caveats: tuple[Caveat, ...]) -> set[str]:
    return {caveat.code for caveat in caveats}


def with_first(results: Results, count: int, **changes: object) -> Results:
    """The same, the first trials of the arm `cell` changed."""
    trials, left = [], count
    for trial in results.trials:
        if trial.condition.arm == "cell" and left:
            trial, left = replace(trial, **changes), left - 1  # type: ignore[arg-type]
        trials.append(trial)
    return replace(results, trials=tuple(trials))


CELL = Condition("cell", "T1", length=4)


def test_every_phase_of_every_condition_adds_up(results: Results, analysis: Analysis) -> None:
    for each in analysis.compositions:
        assert sum(each.by_phase_ms.values()) == pytest.approx(each.wall_ms, rel=1e-9)
        assert sum(map(each.share, Phase)) == pytest.approx(1.0, rel=1e-9)
    assert {each.condition for each in analysis.compositions} == {trial.condition for trial in results.trials}


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from(list(Phase)), st.integers(1, 10**12), min_size=1), min_size=1))
def test_any_composition_adds_up(ledgers: list[dict[Phase, int]]) -> None:
    trials = [
        Trial(i, i, i, CELL, TrialOutcome.COMPLETED, sum(each.values()), None, each) for i, each in enumerate(ledgers)
    ]
    found = composition(CELL, trials, 1, ())
    assert sum(found.by_phase_ms.values()) == pytest.approx(found.wall_ms, rel=1e-9)
    assert found.tax_share.value == pytest.approx(1 - found.share(Phase.EXECUTE), abs=1e-9)


def test_the_parts_of_a_kind_of_action_add_up_to_its_latency(analysis: Analysis) -> None:
    for each in analysis.kinds:
        assert each.latency.value >= each.tax.value
        truth = NATURES[each.condition.arm]
        if each.condition.concurrency == 1 and each.n >= 30:
            assert each.tax.value == pytest.approx(truth.dispatch_ms + truth.observe_ms, rel=0.2)


def test_medians_are_near_the_truth_and_their_intervals_hold_it(analysis: Analysis) -> None:
    held = []
    for each in analysis.summaries:
        if each.metric is Metric.CREATE and each.condition.warmth is Warmth.COLD and each.condition.concurrency == 1:
            truth = NATURES[each.condition.arm].create_ms
            assert each.p50.value == pytest.approx(truth, rel=0.15)
            assert each.p50.low is not None
            assert each.p50.high is not None
            held.append(each.p50.low <= truth <= each.p50.high)
    assert sum(held) >= 0.85 * len(held)


def test_quantiles_are_in_order(analysis: Analysis) -> None:
    for each in analysis.summaries:
        ordered = (each.least, each.p50.value, each.p95.value, each.p99.value, each.most)
        assert all(one <= other for one, other in pairwise(ordered))


def test_ratios_are_those_of_the_truth(analysis: Analysis) -> None:
    setting = Setting("T0")
    found = next(
        each for each in analysis.ratios if each.metric is Metric.CREATE and each.condition == setting.on("docker")
    )
    truth = NATURES["docker"].create_ms / NATURES["process"].create_ms
    assert found.baseline == setting.on("process")
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert found.ratio.low <= truth <= found.ratio.high
    assert found.cliffs_delta == 1.0
    assert found.paired


def test_arms_that_are_exactly_alike_have_a_ratio_of_one_with_its_bounds() -> None:
    results = small()
    first = {trial.block: trial for trial in results.trials}
    alike = tuple(replace(first[trial.block], condition=trial.condition) for trial in results.trials)
    for each in analyse(replace(results, trials=alike)).ratios:
        assert (each.ratio.low, each.ratio.value, each.ratio.high) == (1.0, 1.0, 1.0)


def test_cliffs_delta_is_one_of_sandboxes_also_where_they_come_in_waves() -> None:
    """The same on both: of one wave against another nobody would know, as each is slower or faster as a whole."""
    arms = (Arm("one", "one"), Arm("other", "other"))
    study = Study("waves", arms, (Grid(32, ("T0",), concurrencies=(4,)),))
    found = analyse(synthetic_results(study, natures=dict.fromkeys(("one", "other"), NATURES["cell"])))
    deltas = {each.metric: each.cliffs_delta for each in found.ratios if each.ratio.n == 1}
    assert deltas
    assert all(abs(delta) < 0.5 for delta in deltas.values())


def test_a_failure_rate_does_not_know_how_much_waves_differ(results: Results, analysis: Analysis) -> None:
    for each in analysis.failures:
        in_waves = Code.CLUSTERED in codes(each.rate.caveats)
        assert in_waves == (each.condition.concurrency > 1)


def test_a_warm_stage_is_compared_with_cold_on_the_same_arm(analysis: Analysis) -> None:
    found = [each for each in analysis.warmth_ratios if each.condition.arm == "docker"]
    assert {each.condition.warmth for each in found} == set(Warmth) - {Warmth.COLD}
    for each in found:
        assert each.baseline == replace(each.condition, warmth=Warmth.COLD)
        assert not each.paired
    last = [each for each in found if each.condition.warmth is Warmth.DEPENDENCIES]
    assert all(each.ratio.value < 0.5 for each in last if each.metric is Metric.FIRST_OBSERVATION)


def test_the_floor_is_shown_and_subtracted_from_nothing(analysis: Analysis) -> None:
    assert analysis.floor_arm == "null"
    assert "null" not in analysis.arms
    assert all(each.action.value < 0.05 for each in analysis.floors if each.condition.concurrency == 1)
    assert {Setting.of(each.condition) for each in analysis.floors} == set(analysis.settings())
    arms = (Arm("null", "null"), Arm("process", "process"))
    results = synthetic_results(Study("floor", arms, (Grid(20, ("T0",)),)))
    slow_floor = tuple(stretched(trial, 10) if trial.condition.arm == "null" else trial for trial in results.trials)
    # The tax of an action on `process` is 0.65 ms, the floor's 0.018 ms: no visible part of it, but ten times that is.
    condition, tax = Condition("process", "T0"), Metric.ACTION_TAX
    hidden, seen = (analyse(each).summary(condition, tax) for each in (results, replace(results, trials=slow_floor)))
    assert hidden is not None
    assert seen is not None
    assert Code.FLOOR_VISIBLE not in codes(hidden.caveats)
    assert Code.FLOOR_VISIBLE in codes(seen.caveats)
    assert seen.p50 == hidden.p50
    broken = (replace(t, outcome=TrialOutcome.TIMED_OUT) if t.condition.arm == "null" else t for t in results.trials)
    assert Code.NO_FLOOR not in codes(analyse(results).caveats)
    assert Code.NO_FLOOR in codes(analyse(replace(results, trials=tuple(broken))).caveats)


def test_failed_trials_are_counted_and_never_averaged() -> None:
    whole = small()
    slow = with_first(whole, 6, outcome=TrialOutcome.INFRA_FAILED, wall_ns=10**15, cause="LinkFailed: gone")
    found, before = analyse(slow), analyse(whole)
    failed = next(each for each in found.failures if each.condition == CELL)
    assert (failed.attempted, failed.failed) == (30, 6)
    assert failed.rate.value == 0.2
    assert failed.by_outcome[TrialOutcome.INFRA_FAILED] == 6
    assert sum(failed.by_outcome.values()) == 30
    assert failed.by_cause == {"LinkFailed: gone": 6}
    told = found.summary(CELL, Metric.TRAJECTORY)
    untouched = before.summary(CELL, Metric.TRAJECTORY)
    assert told is not None
    assert untouched is not None
    assert told.n == 24
    assert told.most <= untouched.most
    assert Code.FAILURES in codes(told.caveats)
    ratio = next(each for each in found.ratios if each.metric is Metric.TRAJECTORY)
    assert ratio.ratio.n == 24
    assert Code.UNBALANCED_BLOCKS in codes(ratio.ratio.caveats)


def test_a_condition_of_which_nothing_completed_has_failures_and_no_numbers() -> None:
    found = analyse(with_first(small(), 30, outcome=TrialOutcome.UNFAITHFUL, cause="grep: exit code 2, not 0"))
    assert found.summary(CELL, Metric.TRAJECTORY) is None
    assert [each.rate.value for each in found.failures if each.condition == CELL] == [1.0]
    assert Code.NOTHING_COMPLETED in codes(found.caveats)
    assert found.baseline is None
    assert found.ratios == ()


def test_many_causes_are_bounded() -> None:
    results = small()
    trials = [
        replace(trial, outcome=TrialOutcome.INFRA_FAILED, cause=f"{trial.number}: {'x' * 1000}")
        for trial in results.trials
    ]
    for each in analyse(replace(results, trials=tuple(trials))).failures:
        assert len(each.by_cause) == 11
        assert sum(each.by_cause.values()) == each.failed
        assert max(map(len, each.by_cause)) <= 200


@pytest.mark.parametrize(
    ("results", "code"),
    [
        (small(cut_short="interrupted", planned=90), Code.CUT_SHORT),
        (small(), Code.NO_FLOOR),
        (small(), Code.NOT_EVICTED),
        (small(arms={"cell": {"unavailable": "no user namespaces"}}), Code.UNAVAILABLE),
    ],
)
def test_the_whole_study_has_caveats_of_its_own(results: Results, code: Code) -> None:
    assert code in codes(analyse(results).caveats)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        (small(arms={"cell": {"emulated": True}}), Code.EMULATED),
        (with_first(small(), 1, outcome=TrialOutcome.NOT_COLD, cause="2 pages"), Code.NOT_COLD),
        (with_first(small(), 30, late_ns=10**12), Code.OVERLOAD),
        (with_first(small(), 1, by_phase={Phase.UNATTRIBUTED: 10, Phase.CREATE: 90}, wall_ns=100), Code.RESIDUE),
    ],
)
def test_a_condition_has_caveats_on_every_number(results: Results, code: Code) -> None:
    found = analyse(results)
    told = [each for each in found.summaries if each.condition == CELL]
    assert told
    assert all(code in codes(each.caveats) for each in told)
    assert all(code not in codes(each.caveats) for each in found.summaries if each.condition != CELL)


def test_what_is_left_over_on_the_null_substrate_is_no_residue_but_the_floor() -> None:
    results = synthetic_results(Study("floor", (Arm("null", "null"),), (Grid(12, ("T0",)),)))
    left_over = tuple(replace(trial, by_phase={Phase.UNATTRIBUTED: trial.wall_ns}) for trial in results.trials)
    found = analyse(replace(results, trials=left_over))
    assert [each.over_limit for each in found.residues] == [12]
    assert all(Code.RESIDUE not in codes(each.caveats) for each in found.summaries)


def test_an_arm_that_took_part_in_fewer_trials_says_so(analysis: Analysis) -> None:
    found = analysis.summary(Condition("microvm", "T0"), Metric.TRAJECTORY)
    other = analysis.summary(Condition("cell", "T0"), Metric.TRAJECTORY)
    assert found is not None
    assert other is not None
    assert {Code.FEWER_TRIALS, Code.EMULATED} <= codes(found.caveats)
    assert codes(other.caveats) == set()


def test_drift_is_found_and_noise_is_not(results: Results) -> None:
    trials = [trial for trial in results.trials if trial.condition == Condition("cell", "T0")]
    quiet = drift(CELL, trials)
    assert quiet is not None
    assert quiet.caveats == ()
    slower = [stretched(trial, 1 + 0.3 * place / len(trials)) for place, trial in enumerate(trials)]
    found = drift(CELL, slower)
    assert found is not None
    assert codes(found.caveats) == {Code.DRIFT}
    assert (1 + found.change.value) / (1 + quiet.change.value) == pytest.approx(1.3, rel=0.03)
    assert found.change.low is not None
    assert found.change.low > 0
    assert drift(CELL, trials[:11]) is None


def test_waves_that_differ_are_no_drift(results: Results) -> None:
    """Three waves of 64: each a little slower than the last is what chance gives in one of six cases."""
    crowd = [trial for trial in results.trials if trial.condition == Condition("cell", "T1", 10, concurrency=8)]
    waves = list(dict.fromkeys(trial.block for trial in crowd))
    assert drift(CELL, [stretched(trial, 1 + 0.1 * waves.index(trial.block)) for trial in crowd]) is None


def test_one_straggler_at_the_end_is_no_drift(results: Results) -> None:
    trials = [trial for trial in results.trials if trial.condition == Condition("cell", "T0")]
    found = drift(CELL, [*trials[:-1], stretched(trials[-1], 1000)])
    assert found is not None
    assert found.caveats == ()


def test_a_residue_is_told_with_how_many_have_it() -> None:
    trials = [
        Trial(i, i, i, CELL, TrialOutcome.COMPLETED, 1000, None, {Phase.UNATTRIBUTED: rest})
        for i, rest in enumerate([0, 10, 20, 21, 500])
    ]
    found = residue(CELL, trials)
    assert (found.median, found.most, found.over_limit) == (0.02, 0.5, 2)
    assert codes(found.caveats) == {Code.RESIDUE}


def test_equal_results_give_an_equal_analysis() -> None:
    assert analyse(small()) == analyse(small())


def test_it_is_json_from_end_to_end(analysis: Analysis) -> None:
    told = json.loads(json.dumps(analysis.to_json(), allow_nan=False))
    assert told["summaries"][0]["condition"]["workload"] == "T0"
    assert len(told["ratios"]) == len(analysis.ratios)


def test_series_go_along_one_factor_alone(analysis: Analysis) -> None:
    by_length = [each for each in analysis.series(Metric.TRAJECTORY, "length") if each.condition.workload == "T2"]
    cell = next(each for each in by_length if each.condition.arm == "cell" and each.condition.warmth is Warmth.COLD)
    assert [point.at for point in cell.points] == [1, 10, 50, 150]
    crowd = [each for each in analysis.series(Metric.RESPONSE, "concurrency") if each.condition.arm == "docker"]
    assert [[point.at for point in each.points] for each in crowd] == [[2, 4, 8]]
    warm = next(each for each in analysis.series(Metric.FIRST_OBSERVATION, "warmth") if each.condition.arm == "cell")
    assert [point.at for point in warm.points] == list(Warmth)


def test_a_baseline_can_be_chosen(results: Results) -> None:
    found = analyse(small(), baseline="cell")
    assert {each.baseline.arm for each in found.ratios} == {"cell"}
    with pytest.raises(InvalidRequest, match="there is no arm 'elsewhere'"):
        analyse(results, baseline="elsewhere")


def nothing_took_any_time(trial: Trial) -> Trial:
    idle = tuple(replace(action, dispatch_ns=0, execute_ns=0, observe_ns=0) for action in trial.actions)
    return replace(trial, wall_ns=0, first_observation_ns=0, by_phase={}, actions=idle)


@pytest.mark.parametrize(
    "changed",
    [
        nothing_took_any_time,
        lambda trial: nothing_took_any_time(trial) if trial.number % 3 else trial,
        lambda trial: stretched(trial, 1e12 if trial.number % 7 == 0 else 1.0),
        lambda trial: replace(trial, actions=()),
        lambda trial: replace(trial, first_observation_ns=None, by_phase={}),
    ],
    ids=["no time", "no time for some", "longer than a machine word", "no actions", "no phases"],
)
def test_odd_trials_have_an_analysis_that_is_json(changed: Callable[[Trial], Trial]) -> None:
    study = Study("odd", (Arm("process", "process"), Arm("cell", "cell")), (Grid(13, ("T0",), lengths=(1, 10)),))
    results = synthetic_results(study)
    odd = replace(results, trials=tuple(map(changed, results.trials)))
    json.dumps(analyse(odd).to_json(), allow_nan=False)
    latencies = MeasuredLatencies(odd)
    if min(latencies.mean_s(arm, Scale().steps) for arm in latencies.arms) < 0:
        with pytest.raises(InvalidRequest, match="cannot be projected to 150 steps"):
            project(latencies, Scale())
    else:
        json.dumps(project(latencies, Scale()).to_json(), allow_nan=False)
    json.dumps(compare(odd, odd).to_json(), allow_nan=False)


def test_no_trials_at_all_are_no_crash() -> None:
    found = analyse(small(trials=(), planned=60, cut_short="interrupted"))
    assert found.summaries == ()
    assert Code.CUT_SHORT in codes(found.caveats)
