"""The sentences at the top of a report: they follow from the numbers, and claim no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dutyfree.measure.design.study import Arm, Grid, Study, Warmth
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.says import says
from dutyfree.measure.results.records import Trial
from dutyfree.measure.stats.analysis import Metric, Setting, analyse
from dutyfree.measure.stats.conditions import OTHER_CAUSES
from support import report_samples as samples
from support.synthetic_results import NATURES, Nature, synthetic_results


def told(study: Study, **natures: object) -> list[str]:
    results = synthetic_results(study, natures={**NATURES, **natures})  # type: ignore[dict-item]
    return [each.text for each in says(Evidence(results, analyse(results)))]


PAIR = Study("pair", (Arm("cell", "cell"), Arm("process", "process")), (Grid(40, ("T0",), lengths=(1, 10)),), seed=3)


def test_the_cheapest_action_is_named_with_its_ratio() -> None:
    results, analysis = samples.whole()
    evidence = Evidence(results, analysis)
    first = says(evidence)[0]
    setting = evidence.long_setting()
    assert setting == Setting("T2", 50), "the longest that every arm has"
    cheapest = analysis.summary(setting.on("process"), Metric.ACTION_TAX)
    costliest = analysis.summary(setting.on("docker-exec"), Metric.ACTION_TAX)
    assert cheapest
    assert costliest
    assert first.text.startswith(
        f"What the substrate adds to a command is least on process, {words.estimate_of(cheapest.p50)}"
    )
    assert f"most on docker-exec, {words.estimate_of(costliest.p50)}, " in first.text
    ratio = float(first.text.split("), ")[1].split(" ")[0])
    assert ratio == pytest.approx(costliest.p50.value / cheapest.p50.value, rel=0.1)
    assert {each.code for each in first.caveats} >= {"few-sandboxes"}


def test_arms_that_do_not_differ_are_not_called_different() -> None:
    sentences = told(PAIR, process=NATURES["cell"])
    compared = [each for each in sentences if each.startswith(("What the", "A cold start", "A trajectory"))]
    assert len(compared) == 3
    assert sum("cannot tell the two apart" in each for each in compared) >= 2
    assert not any("times as" in each and "cannot tell" in each for each in compared)


def test_arms_that_differ_are_compared() -> None:
    sentences = told(PAIR)
    assert sum("times as" in each for each in sentences) == 3
    assert not any("cannot tell" in each for each in sentences)


def test_places_are_said_to_change_only_where_that_was_measured_and_is_beyond_doubt() -> None:
    """`guest` takes a second more to start, and saves 10 ms with every action: 100 actions, give or take."""
    exec_, guest = Nature(100, 1, 1, 12, 1, slowdown=0.001), Nature(1100, 1, 1, 2, 1, slowdown=0.001)
    arms = (Arm("process", "process"), Arm("cell", "cell"))

    def crossing(lengths: tuple[int, ...], one: Nature, other: Nature) -> list[str]:
        study = Study("cross", arms, (Grid(20, ("T0",), lengths=lengths),), seed=1)
        return [each for each in told(study, process=one, cell=other) if " is faster than " in each]

    (sentence,) = crossing((10, 200), exec_, guest)
    assert sentence.startswith("On average process is faster than cell only below ")
    assert crossing((10, 50), exec_, guest) == []
    assert crossing((1, 10), NATURES["cell"], NATURES["cell"]) == []


def test_a_warm_stage_saves_something_or_is_not_mentioned() -> None:
    arms = (Arm("cell", "cell"),)
    for warmth, said in ((Warmth.DEPENDENCIES, True), (Warmth.COLD, False)):
        grids = (Grid(12, ("T2",)), Grid(12, ("T2",), warmths=(Warmth.DEPENDENCIES,)))
        results = synthetic_results(Study("warm", arms, grids))
        as_cold = [t for t in results.trials if t.condition.warmth is Warmth.COLD]
        if warmth is Warmth.COLD:  # what is called warm takes as long as what is called cold
            trials = [replace(t, condition=replace(t.condition, warmth=Warmth.DEPENDENCIES)) for t in as_cold]
            results = replace(results, trials=(*as_cold, *trials))
        sentences = [each.text for each in says(Evidence(results, analyse(results)))]
        assert any(each.startswith("Warm stages save most") for each in sentences) is said


def test_load_is_told_of_one_setting() -> None:
    study = Study("load", (Arm("cell", "cell"),), (Grid(16, ("T0", "T1"), lengths=(3,), concurrencies=(1, 2)),))
    (sentence,) = (each for each in told(study) if each.startswith("With several"))
    assert sentence.count("on cell from") == 1
    assert sentence.endswith("(T0, 3 actions, cold).")


def test_failures_and_the_floor_are_always_told() -> None:
    for sample in (samples.whole, samples.tiny, samples.alone, samples.only_failures):
        sentences = [each.text for each in says(Evidence(*sample()))]
        assert any("trials failed" in each or "trials completed" in each for each in sentences)
        assert any("floor" in each or "instrument itself" in each for each in sentences)
    assert "most often" not in " ".join(each.text for each in says(Evidence(*samples.only_failures())))
    assert "most often on gvisor" in " ".join(each.text for each in says(Evidence(*samples.whole())))


def test_one_cause_of_most_failures_is_told() -> None:
    results, _ = samples.only_failures()
    trials = [replace(each, cause="overload: 8 were under way") for each in results.trials if not each.completed]
    other = replace(trials[0], cause="SubstrateFailed: no luck")

    def said(*failed: Trial) -> str:
        alike = replace(results, trials=(*failed, *(each for each in results.trials if each.completed)))
        (sentence,) = (each.text for each in says(Evidence(alike, analyse(alike))) if "trials failed" in each.text)
        return sentence

    assert said(*trials).endswith(". All of them: overload: 8 were under way.")
    assert said(*trials[1:], other).endswith(f". {len(trials) - 1} of them: overload: 8 were under way.")
    assert "of them:" not in said(*trials[:1], other)


def test_all_sorts_of_causes_are_no_cause() -> None:
    results, analysis = samples.only_failures()
    mixed = [replace(each, by_cause={OTHER_CAUSES: each.failed}) for each in analysis.failures]
    sentences = [each.text for each in says(Evidence(results, replace(analysis, failures=tuple(mixed))))]
    assert not any("of them:" in each for each in sentences)


def test_a_study_without_trials_says_so() -> None:
    results, analysis = samples.tiny()
    empty = replace(results, trials=())
    assert says(Evidence(empty, analyse(empty)))[0].text == "No trial was run."
    assert analysis.trials
