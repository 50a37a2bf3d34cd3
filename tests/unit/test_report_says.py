"""The sentences at the top of a report: they follow from the numbers, and claim no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples
from synthetic_results import NATURES, synthetic_results

from dutyfree.measure.design.study import Arm, Grid, Study
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.says import says
from dutyfree.measure.stats.analysis import Metric, Setting, analyse


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
        f"The cheapest action is on process: the substrate adds {words.estimate_of(cheapest.p50)}"
    )
    assert f"On docker-exec it adds {words.estimate_of(costliest.p50)}, " in first.text
    ratio = float(first.text.split("), ")[1].split(" ")[0])
    assert ratio == pytest.approx(costliest.p50.value / cheapest.p50.value, rel=0.1)
    assert {each.code for each in first.caveats} >= {"few-sandboxes"}


def test_arms_that_do_not_differ_are_not_called_different() -> None:
    sentences = told(PAIR, process=NATURES["cell"])
    compared = [each for each in sentences if each.startswith(("The cheapest", "A cold start", "A trajectory"))]
    assert len(compared) == 3
    assert sum("cannot tell the two apart" in each for each in compared) >= 2
    assert not any("times as" in each and "cannot tell" in each for each in compared)


def test_arms_that_differ_are_compared() -> None:
    sentences = told(PAIR)
    assert sum("times as" in each for each in sentences) == 3
    assert not any("cannot tell" in each for each in sentences)


def test_failures_and_the_floor_are_always_told() -> None:
    for sample in (samples.whole, samples.tiny, samples.alone, samples.only_failures):
        sentences = [each.text for each in says(Evidence(*sample()))]
        assert any("trials failed" in each or "trials completed" in each for each in sentences)
        assert any("floor" in each or "instrument itself" in each for each in sentences)
    assert "most often" not in " ".join(each.text for each in says(Evidence(*samples.only_failures())))
    assert "most often on gvisor" in " ".join(each.text for each in says(Evidence(*samples.whole())))


def test_a_study_without_trials_says_so() -> None:
    results, analysis = samples.tiny()
    empty = replace(results, trials=())
    assert says(Evidence(empty, analyse(empty)))[0].text == "No trial was run."
    assert analysis.trials
