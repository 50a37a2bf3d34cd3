"""Finds out whether a condition became slower while it was measured: the slope of log latency over the order of trials.

The slope is Theil & Sen's (the median of the slopes of all pairs), with Kendall's test. Least squares would follow the
few outliers that every latency has, and would report one slow trial near the end as a trend. Sandboxes of one wave are
similar, which would look like a trend, too; so a wave counts as one point.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import fmean
from typing import Final

import numpy as np
from scipy import stats

from dutyfree.measure.design.study import Condition
from dutyfree.measure.results.records import Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.estimate import Estimate
from dutyfree.measure.stats.findings import Drift

SIGNIFICANT: Final = 0.001
"""Stricter than 0.01, because a study has about a hundred conditions: at 0.01 every study would have a false alarm."""
RELEVANT: Final = 0.02
"""A smaller change gives no caveat, even if it is significant."""
_MOST_POINTS: Final = 1_000


def drift(condition: Condition, trials: Sequence[Trial]) -> Drift | None:
    """The trend of completed trials; None if there are fewer than 12 blocks."""
    blocks: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.wall_ns > 0:
            blocks.setdefault(trial.block, []).append(trial)
    points = sorted((fmean(t.sequence for t in each), fmean(log(t.wall_ns) for t in each)) for each in blocks.values())
    n = len(points)
    if n < caveats.FEW_SANDBOXES:
        return None
    # The number of pairs grows with the square of the blocks; every k-th block shows the same trend.
    place, logs = np.array(points[:: -(-n // _MOST_POINTS)]).T
    span = points[-1][0] - points[0][0]
    slope, _, low, high = stats.theilslopes(logs, place, alpha=0.95)
    p_value = float(stats.kendalltau(place, logs).pvalue) if np.ptp(logs) > 0 else 1.0
    change, least, most = (float(np.expm1(each * span)) for each in (slope, low, high))
    found = p_value < SIGNIFICANT and abs(change) > RELEVANT
    doubts = (caveats.drift(change, p_value),) if found else ()
    return Drift(condition, n, Estimate(change, least, most, n, "share"), p_value, doubts)
