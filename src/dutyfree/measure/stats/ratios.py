"""Ratios: geometric means of paired ratios, with intervals that resample whole blocks, and Cliff's delta."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dutyfree.measure.results.records import Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.bootstrap import percentile_interval, resampled_means
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.metrics import Metric

UNIT: Final = "x"

BALANCED: Final = 0.9
"""If a smaller share of the blocks can be compared, the comparison has a caveat."""

Values = NDArray[np.float64]
Logs = Mapping[Metric, Mapping[int, float]]


def readings(trials: Sequence[Trial], metrics: Iterable[Metric] = Metric) -> dict[Metric, Values]:
    """The metrics of each trial. A metric that is missing or zero in any trial has no ratio, and is left out."""
    read = {metric: [metric.of(trial) for trial in trials] for metric in metrics}
    return {metric: np.array(values) for metric, values in read.items() if all(values)}


def logs_by_block(trials: Sequence[Trial], read: Mapping[Metric, Values]) -> dict[Metric, dict[int, float]]:
    """The mean logarithm of each metric in each block."""
    blocks, member, sizes = np.unique([trial.block for trial in trials], return_inverse=True, return_counts=True)
    means = {metric: np.bincount(member, np.log(values)) / sizes for metric, values in read.items()}
    return {metric: dict(zip(blocks.tolist(), each.tolist(), strict=True)) for metric, each in means.items()}


def paired_ratios(ours: Logs, theirs: Logs, seed: int) -> dict[Metric, Estimate]:
    """For each metric that both have: exp of the mean difference of logarithms, over the blocks that both have."""
    metrics = [metric for metric in ours if metric in theirs]
    common = sorted(ours[metrics[0]].keys() & theirs[metrics[0]].keys()) if metrics else []
    if not common:
        return {}
    differences = np.array([[ours[each][block] - theirs[each][block] for each in metrics] for block in common])
    means = resampled_means(differences, np.ones((len(common), 1)), seed)
    doubts = [*_doubts(len(common))]
    if len(common) < BALANCED * (blocks := len(ours[metrics[0]].keys() | theirs[metrics[0]].keys())):
        doubts.append(caveats.unbalanced_blocks(len(common), blocks))
    return {
        metric: _estimate(float(differences[:, column].mean()), means[:, column], len(common), doubts)
        for column, metric in enumerate(metrics)
    }


def unpaired_ratio(ours: Values, theirs: Values, seed: int) -> Estimate:
    """exp of the difference of two means of logarithms, for blocks that are not paired."""
    means = [
        resampled_means(side[:, None], np.ones((len(side), 1)), seed, stream=stream)[:, 0]
        for stream, side in enumerate((ours, theirs))
    ]
    n = min(len(ours), len(theirs))
    return _estimate(float(ours.mean() - theirs.mean()), means[0] - means[1], n, _doubts(n))


def cliffs_delta(ours: Values, theirs: Values) -> float:
    """P(ours > theirs) - P(ours < theirs), over all pairs."""
    ordered = np.sort(theirs)
    above = np.searchsorted(ordered, ours, side="left")
    below = len(ordered) - np.searchsorted(ordered, ours, side="right")
    return float(np.mean(above - below)) / len(ordered)


def _doubts(blocks: int) -> Iterable[Caveat]:
    return (caveats.few_blocks(blocks),) if blocks < caveats.FEW_SANDBOXES else ()


def _estimate(mean: float, means: Values, blocks: int, doubts: Iterable[Caveat]) -> Estimate:
    low, high = percentile_interval(means, blocks)
    low, high = (None if end is None else exp(end) for end in (low, high))
    return Estimate(exp(mean), low, high, blocks, UNIT, tuple(doubts))
