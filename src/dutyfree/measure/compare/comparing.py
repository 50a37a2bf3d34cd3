"""`compare`: two results in, verdicts out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dutyfree.errors import InvalidRequest
from dutyfree.measure.compare import sameness
from dutyfree.measure.compare.comparison import Comparison, Difference, FailureDifference, Gates, Verdict
from dutyfree.measure.compare.machine_drift import Unexplained, machine_change, unexplained
from dutyfree.measure.compare.shift import Shift, adjusted, paired_shift, unpaired_shift
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import Condition
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.examined import Examined, examine
from dutyfree.measure.stats.metrics import UNIT, Metric
from dutyfree.measure.stats.quantiles import quantile
from dutyfree.measure.stats.ratios import cliffs_delta, logs_by_block, readings

COMPARED: Final = (
    Metric.FIRST_OBSERVATION,
    Metric.TRAJECTORY,
    Metric.ACTION,
    Metric.ACTION_TAX,
    Metric.CREATE,
    Metric.READY,
    Metric.SETUP,
    Metric.DESTROY,
    Metric.RESPONSE,
)
"""The compared metrics: those that do not follow from the others."""

ByBlock = dict[int, float]
Values = NDArray[np.float64]


def compare(
    before: Results, after: Results, gates: Gates | None = None, *, metrics: Sequence[Metric] = COMPARED
) -> Comparison:
    """The differences between two runs, by condition and metric.

    Raises InvalidRequest if the two have no condition in common, or if a workload of the same name differs.
    """
    paired = sameness.same_plan(before, after)
    machine = (_logs(before.references), _logs(after.references))
    change = machine_change(*machine)
    found = _compare(before, after, gates or Gates(), metrics, machine=machine, paired=paired)
    ratio = None if change is None else _factor(Shift(*change, 1.0), min(len(each) for each in machine))
    apart = caveats.not_interleaved(None if ratio is None else ratio.value)
    return replace(found, machine=ratio, caveats=(apart, *sameness.differences(before, after)))


def compare_arms(
    results: Results, pairs: Mapping[str, str], gates: Gates | None = None, *, metrics: Sequence[Metric] = COMPARED
) -> Comparison:
    """The differences between arms of one study, whose trials were interleaved block by block.

    `pairs`: the arm after, by the arm before; conditions have the name of the arm after. Raises InvalidRequest if there
    is no such arm, and as `compare`.
    """
    before = sameness.only_arms(results, pairs)
    after = sameness.only_arms(results, {arm: arm for arm in pairs.values()})
    found = _compare(before, after, gates or Gates(), metrics, machine=None, paired=True)
    return replace(found, interleaved=True, caveats=tuple(sameness.cut_short(results)))


def _compare(
    before: Results,
    after: Results,
    gates: Gates,
    metrics: Sequence[Metric],
    *,
    machine: tuple[ByBlock, ByBlock] | None,
    paired: bool,
) -> Comparison:
    """`machine` is the logarithm of the reference by block in both runs; None if the trials were interleaved."""
    ours, theirs = examine(before), examine(after)
    null = {arm.name for results in (before, after) for arm in results.study.arms if arm.substrate == NULL}
    tried = [[each for each in side.failures if each.arm not in null] for side in (ours, theirs)]
    common = [condition for condition in tried[0] if condition in theirs.failures]
    if not common:
        raise InvalidRequest("the two results have no condition in common", hint="compare results of the same study")
    if paired:
        sameness.refuse_other_actions(before, after)
    differences = [
        found
        for condition in common
        for found in _differences(condition, ours, theirs, metrics, machine=machine, paired=paired)
    ]
    failures = [_failure_difference(condition, ours, theirs) for condition in common]
    of_failures = [each.p_value for each in failures]
    corrected = adjusted([each.p_value for each in differences] + of_failures)
    if machine is not None:
        drifting = adjusted([_larger_p(each) for each in differences] + of_failures)
        differences = [replace(each, drift_p=p) for each, p in zip(differences, drifting, strict=False)]
    return Comparison(
        gates,
        paired,
        tuple(_judged(each, p, gates) for each, p in zip(differences, corrected, strict=False)),
        tuple(
            _judged_failures(each, p, gates) for each, p in zip(failures, corrected[len(differences) :], strict=True)
        ),
        lost=tuple(each for each in tried[0] if each in ours.completed and each not in theirs.completed),
        only_before=tuple(each for each in tried[0] if each not in theirs.failures),
        only_after=tuple(each for each in tried[1] if each not in ours.failures),
    )


def _differences(
    condition: Condition,
    ours: Examined,
    theirs: Examined,
    metrics: Sequence[Metric],
    *,
    machine: tuple[ByBlock, ByBlock] | None,
    paired: bool,
) -> list[Difference]:
    """The differences without verdicts: a verdict needs the p-values of all comparisons."""
    sides = [side.completed.get(condition, ()) for side in (ours, theirs)]
    if not all(sides):
        return []
    blocks = [[trial.block for trial in trials] for trials in sides]
    read = [readings(trials, metrics) for trials in sides]
    before, after = (logs_by_block(*each) for each in zip(sides, read, strict=True))
    found = []
    for metric in metrics:
        if metric in before and metric in after:
            values = [each[metric] for each in read]
            shift, n, pairs = _shift(before[metric], after[metric], paired=paired)
            p50 = [quantile(each, 0.5, UNIT, where) for each, where in zip(values, blocks, strict=True)]
            delta = cliffs_delta(values[1], values[0])
            doubts = _doubts(condition, ours, theirs)
            doubts += (caveats.few_blocks(n),) if n < caveats.FEW_SANDBOXES else ()
            left, drift_p = shift.value, None
            if machine is not None:
                drifted = unexplained(before[metric], after[metric], machine, paired=pairs)
                shift, left, drift_p = _widened(shift, drifted)
            found.append(
                Difference(
                    condition,
                    metric,
                    Verdict.CANNOT_TELL,
                    p50[0],
                    p50[1],
                    ratio=_factor(shift, n),
                    unexplained=exp(left),
                    p_value=shift.p_value,
                    adjusted_p=1.0,
                    drift_p=drift_p,
                    cliffs_delta=delta,
                    paired=pairs,
                    caveats=doubts,
                )
            )
    return found


def _widened(shift: Shift, drifted: Unexplained | None) -> tuple[Shift, float, float]:
    """The shift with an interval that contains what drift may explain; the part that it leaves; the p-value of that."""
    if drifted is None:
        return replace(shift, low=None, high=None), 0.0, 1.0
    low = min(each for each in (shift.low, drifted.low) if each is not None)
    high = max(each for each in (shift.high, drifted.high) if each is not None)
    wide = replace(shift, low=low, high=high)
    same_sign = shift.value * drifted.value > 0
    return wide, min(shift.value, drifted.value, key=abs) if same_sign else 0.0, drifted.p_value


def _larger_p(found: Difference) -> float:
    """The p-value of the rank test or of the drift, whichever is the weaker evidence."""
    return max(found.p_value, 0.0 if found.drift_p is None else found.drift_p)


def _shift(before: ByBlock, after: ByBlock, *, paired: bool) -> tuple[Shift, int, bool]:
    """The shift, the number of pairs (or of values on the smaller side), and whether the values were paired."""
    common = sorted(before.keys() & after.keys()) if paired else []
    if common:
        ours, theirs = (np.array([side[block] for block in common]) for side in (before, after))
        return paired_shift(ours, theirs), len(common), True
    return unpaired_shift(_values(before), _values(after)), min(len(before), len(after)), False


def _failure_difference(condition: Condition, ours: Examined, theirs: Examined) -> FailureDifference:
    before, after = ours.failures[condition], theirs.failures[condition]
    if condition.concurrency == 1:
        table = [[each.failed, each.attempted - each.failed] for each in (before, after)]
        p_value = float(stats.fisher_exact(table).pvalue)
    else:  # the wave is the unit of repetition, because its sandboxes fail together
        shares = [_failed_by_block(side.tried[condition]) for side in (ours, theirs)]
        p_value = unpaired_shift(*shares).p_value
    doubts = tuple(dict.fromkeys((*before.rate.caveats, *after.rate.caveats)))
    return FailureDifference(condition, Verdict.CANNOT_TELL, before.rate, after.rate, p_value, 1.0, doubts)


def _failed_by_block(trials: Sequence[Trial]) -> Values:
    """The share of each block's trials that failed."""
    blocks: dict[int, list[bool]] = {}
    for trial in trials:
        blocks.setdefault(trial.block, []).append(not trial.completed)
    return np.array([fmean(each) for each in blocks.values()])


def _judged(found: Difference, adjusted_p: float, gates: Gates) -> Difference:
    verdict = Verdict.CANNOT_TELL
    if adjusted_p < gates.significance and _matters(found.ratio.value, gates):
        certain = found.drift_p is None or (found.drift_p < gates.significance and _matters(found.unexplained, gates))
        direction = Verdict.SLOWER if found.ratio.value > 1 else Verdict.FASTER
        verdict = direction if certain else Verdict.CHANGED
    return replace(found, verdict=verdict, adjusted_p=adjusted_p)


def _matters(ratio: float, gates: Gates) -> bool:
    return max(ratio, 1 / ratio) > 1 + gates.effect


def _judged_failures(found: FailureDifference, adjusted_p: float, gates: Gates) -> FailureDifference:
    verdict, change = Verdict.CANNOT_TELL, found.after.value - found.before.value
    if adjusted_p < gates.significance and abs(change) > gates.failure_effect:
        verdict = Verdict.FAILS_MORE if change > 0 else Verdict.FAILS_LESS
    return replace(found, verdict=verdict, adjusted_p=adjusted_p)


def _factor(shift: Shift, n: int) -> Estimate:
    low, high = (None if end is None else exp(end) for end in (shift.low, shift.high))
    return Estimate(exp(shift.value), low, high, n, "x")


def _doubts(condition: Condition, ours: Examined, theirs: Examined) -> tuple[Caveat, ...]:
    """The caveats of both sides; one that only one side has names the side."""
    before, after = ours.doubts[condition], theirs.doubts[condition]
    shared = [each for each in before if each in after]
    alone = [
        Caveat(each.code, f"{side}: {each.text}")
        for side, doubts in (("before", before), ("after", after))
        for each in doubts
        if each not in shared
    ]
    return (*shared, *alone)


def _logs(references: Mapping[int, int]) -> ByBlock:
    return {block: log(spawn_ns) for block, spawn_ns in references.items()}


def _values(by_block: ByBlock) -> Values:
    return np.array([*by_block.values()])
