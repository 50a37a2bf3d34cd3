"""Compares conditions of one study: arms with the baseline, warm stages with cold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.results.records import Trial
from dutyfree.measure.stats.estimate import Caveat
from dutyfree.measure.stats.findings import Ratio
from dutyfree.measure.stats.metrics import Metric
from dutyfree.measure.stats.ratios import cliffs_delta, logs_by_block, paired_ratios, readings, unpaired_ratio

WARMED: Final = (Metric.FIRST_OBSERVATION, Metric.TRAJECTORY)
"""The metrics that a warm stage can change."""

Completed = Mapping[Condition, Sequence[Trial]]
Doubts = Mapping[Condition, tuple[Caveat, ...]]


def with_baseline(completed: Completed, baseline: str, doubts: Doubts, seed: int) -> Iterator[Ratio]:
    """Compare every other arm with the baseline: each metric, in each setting in which both completed trials."""
    read = {condition: readings(trials) for condition, trials in completed.items()}
    logs = {condition: logs_by_block(trials, read[condition]) for condition, trials in completed.items()}
    for condition, ours in logs.items():
        other = replace(condition, arm=baseline)
        if condition != other and other in logs:
            for metric, ratio in paired_ratios(ours, logs[other], seed).items():
                delta = cliffs_delta(read[condition][metric], read[other][metric])
                yield Ratio(metric, condition, other, ratio, delta, True, _both(doubts, condition, other))


def with_cold(completed: Completed, doubts: Doubts, seed: int) -> Iterator[Ratio]:
    """Compare every warm stage with cold on the same arm. Unpaired: warm and cold trials are in different blocks."""
    for condition, trials in completed.items():
        cold = replace(condition, warmth=Warmth.COLD)
        if condition != cold and cold in completed:
            ours, theirs = readings(trials, WARMED), readings(completed[cold], WARMED)
            warm_logs, cold_logs = logs_by_block(trials, ours), logs_by_block(completed[cold], theirs)
            for metric in WARMED:
                if metric in ours and metric in theirs:
                    ratio = unpaired_ratio(_values(warm_logs[metric]), _values(cold_logs[metric]), seed)
                    delta = cliffs_delta(ours[metric], theirs[metric])
                    yield Ratio(metric, condition, cold, ratio, delta, False, _both(doubts, condition, cold))


def _values(by_block: Mapping[int, float]) -> NDArray[np.float64]:
    return np.array([*by_block.values()])


def _both(doubts: Doubts, condition: Condition, other: Condition) -> tuple[Caveat, ...]:
    return tuple(dict.fromkeys((*doubts[condition], *doubts[other])))
