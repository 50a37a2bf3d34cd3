"""Findings that are made from the trials of one condition alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dutyfree.measure.design.study import Condition
from dutyfree.measure.results.records import ActionRecord, Trial, TrialOutcome
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.bootstrap import percentile_interval, resampled_means
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.findings import Composition, Failures, Floor, KindTax, Step, Summary
from dutyfree.measure.stats.metrics import NS_PER_MS, UNIT, Metric
from dutyfree.measure.stats.quantiles import quantile
from dutyfree.measure.stats.rates import rate
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase

MOST_CAUSES: Final = 10
OTHER_CAUSES: Final = "other causes"
MOST_CAUSE_LENGTH: Final = 200

Doubts = tuple[Caveat, ...]
Values = NDArray[np.float64]


def summaries(condition: Condition, trials: Sequence[Trial], seed: int, doubts: Doubts) -> list[Summary]:
    """Summarise every metric that the completed trials have."""
    read = {metric: [metric.of(trial) for trial in trials] for metric in Metric}
    had = {metric: values for metric, values in read.items() if any(value is not None for value in values)}
    blocks = [trial.block for trial in trials]
    parts = np.array([[value or 0.0 for value in values] for values in had.values()])
    wholes = np.array([[value is not None for value in values] for values in had.values()], dtype=np.float64)
    means = means_by_block(parts.T, wholes.T, blocks, UNIT, seed)
    found = []
    for (metric, values), mean in zip(had.items(), means, strict=True):
        measured = [(value, block) for value, block in zip(values, blocks, strict=True) if value is not None]
        found.append(_summary(condition, metric, measured, mean, doubts))
    return found


def failures(condition: Condition, trials: Sequence[Trial]) -> Failures:
    """Count how all trials of the condition ended."""
    failed = [trial for trial in trials if not trial.completed]
    causes = Counter((trial.cause or str(trial.outcome))[:MOST_CAUSE_LENGTH] for trial in failed).most_common()
    by_cause = dict(causes[:MOST_CAUSES])
    if rest := sum(count for _, count in causes[MOST_CAUSES:]):
        by_cause[OTHER_CAUSES] = rest
    outcomes = Counter(trial.outcome for trial in trials)
    return Failures(
        condition,
        len(trials),
        len(failed),
        rate(len(failed), len(trials), blocks=len({trial.block for trial in trials})),
        {outcome: outcomes[outcome] for outcome in TrialOutcome},
        by_cause,
        dict(Counter(str(trial.failed_phase or "") for trial in failed)),
        (caveats.not_cold(found),) if (found := outcomes[TrialOutcome.NOT_COLD]) else (),
    )


def composition(condition: Condition, trials: Sequence[Trial], seed: int, doubts: Doubts) -> Composition:
    """Split the mean time into phases. `trials` are completed trials, at least one."""
    totals = {phase: sum(trial.by_phase.get(phase, 0) for trial in trials) for phase in Phase}
    scale = 1 / NS_PER_MS / len(trials)
    walls = np.array([max(1, trial.wall_ns) for trial in trials], dtype=np.float64)
    tax = walls - np.array([trial.by_phase.get(Phase.EXECUTE, 0) for trial in trials], dtype=np.float64)
    (tax_share,) = means_by_block(tax[:, None], walls[:, None], [trial.block for trial in trials], "share", seed)
    by_phase_ms = {phase: total * scale for phase, total in totals.items() if total}
    return Composition(condition, len(trials), float(walls.sum()) * scale, by_phase_ms, tax_share, doubts)


def kinds(condition: Condition, trials: Sequence[Trial], doubts: Doubts) -> list[KindTax]:
    """The tax of the actions of completed trials, by kind of action."""
    found = []
    for kind in ActionKind:
        within = [(each, trial.block) for trial in trials if (each := [a for a in trial.actions if a.kind is kind])]
        if within:
            found.append(_kind(condition, kind, [each for each, _ in within], [block for _, block in within], doubts))
    return found


def steps(condition: Condition, trials: Sequence[Trial], doubts: Doubts) -> list[Step]:
    """The time between the substrate's own boundaries, in the order in which they first occur."""
    found = []
    for name in dict.fromkeys(name for trial in trials for name in trial.steps):
        having = [(trial.steps[name] / NS_PER_MS, trial.block) for trial in trials if name in trial.steps]
        values, blocks = [value for value, _ in having], [block for _, block in having]
        p50 = quantile(values, 0.50, UNIT, blocks)
        found.append(Step(condition, name, len(values), p50, sum(values) / len(trials), doubts))
    return found


def floor(of_action: Summary, of_trajectory: Summary) -> Floor:
    """The instrument's own time, from the summaries of the null substrate."""
    both = (*of_action.caveats, *of_trajectory.caveats)
    return Floor(of_action.condition, of_action.n, of_action.p50, of_trajectory.p50, tuple(dict.fromkeys(both)))


def _kind(
    condition: Condition, kind: ActionKind, within: list[list[ActionRecord]], blocks: list[int], doubts: Doubts
) -> KindTax:
    def medians(part: Callable[[ActionRecord], int]) -> Estimate:
        return quantile([median(map(part, each)) / NS_PER_MS for each in within], 0.50, UNIT, blocks)

    def mean(part: Callable[[ActionRecord], int]) -> float:
        return fmean(fmean(map(part, each)) for each in within) / NS_PER_MS

    return KindTax(
        condition,
        kind,
        len(within),
        sum(map(len, within)),
        latency=medians(lambda action: action.latency_ns),
        tax=medians(lambda action: action.tax_ns),
        dispatch_ms=mean(lambda action: action.dispatch_ns),
        execute_ms=mean(lambda action: action.execute_ns),
        observe_ms=mean(lambda action: action.observe_ns),
        caveats=doubts,
    )


def means_by_block(parts: Values, wholes: Values, blocks: Sequence[int], unit: str, seed: int) -> list[Estimate]:
    """For each column: the sum of the parts divided by the sum of the wholes. Intervals resample whole blocks."""
    _, member = np.unique(np.asarray(blocks), return_inverse=True)
    sums, sizes = (
        np.column_stack([np.bincount(member, part).astype(np.float64) for part in each.T]) for each in (parts, wholes)
    )
    found = []
    for column, means in enumerate(resampled_means(sums, sizes, seed).T):
        had = sizes[:, column] > 0
        n = int(np.count_nonzero(had))
        value = float(sums[:, column].sum() / sizes[:, column].sum())
        doubts = caveats.of_mean(sums[had, column] / sizes[had, column])
        found.append(Estimate(value, *percentile_interval(means, n), n, unit, doubts))
    return found


def _summary(
    condition: Condition, metric: Metric, measured: list[tuple[float, int]], mean: Estimate, doubts: Doubts
) -> Summary:
    values, blocks = [value for value, _ in measured], [block for _, block in measured]
    p50, p95, p99 = (quantile(values, p, UNIT, blocks) for p in (0.50, 0.95, 0.99))
    return Summary(condition, metric, len(values), p50, p95, p99, mean, min(values), max(values), doubts)
