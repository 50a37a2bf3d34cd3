"""From results to findings: `analyse`, and the values that it gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import Condition
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats import caveats, comparisons, conditions, doubts, growth
from dutyfree.measure.stats.bootstrap import RESAMPLES
from dutyfree.measure.stats.examined import examine
from dutyfree.measure.stats.findings import (
    Analysis,
    Composition,
    Crossover,
    Drift,
    Factor,
    Failures,
    Floor,
    Growth,
    KindTax,
    Ratio,
    Residue,
    Series,
    SeriesPoint,
    Setting,
    Step,
    Summary,
)
from dutyfree.measure.stats.metrics import Metric

__all__ = [
    "Analysis",
    "Composition",
    "Crossover",
    "Drift",
    "Factor",
    "Failures",
    "Floor",
    "Growth",
    "KindTax",
    "Metric",
    "Ratio",
    "Residue",
    "Series",
    "SeriesPoint",
    "Setting",
    "Step",
    "Summary",
    "analyse",
]


def analyse(results: Results, *, baseline: str | None = None) -> Analysis:
    """Everything that the statistics find in a study. Equal results give an equal analysis.

    `baseline` is the arm that others are compared with: if not given, the study's first one with a completed trial.
    Raises InvalidRequest if it names no arm of the study.
    """
    study, seed = results.study, results.study.seed
    floor_arm = next((arm.name for arm in study.arms if arm.substrate == NULL), None)
    examined = examine(results)
    completed, doubted = examined.completed, examined.doubts
    contenders = {condition: each for condition, each in completed.items() if condition.arm != floor_arm}
    baseline = _baseline(results, contenders) if baseline is None else _checked_baseline(results, baseline)
    summaries = [one for at, each in completed.items() for one in conditions.summaries(at, each, seed, doubted[at])]
    lengths = growth.by_length(contenders)
    return Analysis(
        study=study.name,
        arms=tuple(arm.name for arm in study.arms if arm.name != floor_arm),
        baseline=baseline,
        floor_arm=floor_arm,
        trials=len(results.trials),
        planned=results.planned,
        resamples=RESAMPLES,
        seed=seed,
        summaries=_beside_floor(summaries, floor_arm),
        failures=tuple(examined.failures.values()),
        ratios=() if baseline is None else tuple(comparisons.with_baseline(contenders, baseline, doubted, seed)),
        warmth_ratios=tuple(comparisons.with_cold(contenders, doubted, seed)),
        compositions=tuple(conditions.composition(at, each, seed, doubted[at]) for at, each in completed.items()),
        kinds=tuple(kind for at, each in completed.items() for kind in conditions.kinds(at, each, doubted[at])),
        steps=tuple(step for at, each in completed.items() for step in conditions.steps(at, each, doubted[at])),
        drifts=tuple(examined.drifts.values()),
        residues=tuple(examined.residues.values()),
        growths=tuple(line for each in lengths if (line := growth.growth(each, seed, examined)) is not None),
        crossovers=growth.crossovers(lengths, seed, examined),
        floors=_floors(summaries, floor_arm),
        caveats=tuple(doubts.of_study(results, examined.failures)),
    )


def _baseline(results: Results, contenders: Iterable[Condition]) -> str | None:
    able = {condition.arm for condition in contenders}
    arms = [arm.name for arm in results.study.arms if arm.name in able]
    return arms[0] if len(arms) > 1 else None


def _checked_baseline(results: Results, baseline: str) -> str:
    arms = [arm.name for arm in results.study.arms]
    if baseline not in arms:
        raise InvalidRequest(f"there is no arm {baseline!r}", hint=f"there are: {', '.join(arms)}")
    return baseline


def _floors(summaries: Sequence[Summary], floor_arm: str | None) -> tuple[Floor, ...]:
    found = {(each.condition, each.metric): each for each in summaries if each.condition.arm == floor_arm}
    return tuple(
        conditions.floor(of_action, each)
        for (condition, metric), each in found.items()
        if metric is Metric.TRAJECTORY and (of_action := found.get((condition, Metric.ACTION))) is not None
    )


def _beside_floor(summaries: Sequence[Summary], floor_arm: str | None) -> tuple[Summary, ...]:
    """The summaries, with a caveat where the instrument's own time is a visible part of the number."""
    floor: dict[tuple[Setting, Metric], float] = {
        (Setting.of(each.condition), each.metric): each.p50.value
        for each in summaries
        if each.condition.arm == floor_arm and each.metric is not Metric.LATENESS
    }

    def marked(summary: Summary) -> Summary:
        of_floor = floor.get((Setting.of(summary.condition), summary.metric), 0.0)
        if summary.condition.arm == floor_arm or of_floor <= caveats.FLOOR_LIMIT * summary.p50.value:
            return summary
        seen = caveats.floor_visible(of_floor / summary.p50.value)
        return replace(summary, caveats=(*summary.caveats, seen))

    return tuple(map(marked, summaries))
