"""The figures of a report, in its order; 1 to 6 are the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.figures import actions, cold_start, decomposition, load, reliability, scale, trajectories
from dutyfree.measure.report.picture import Absent, Drawn


@dataclass(frozen=True)
class Entry:
    """A figure's file name, which never changes, and the function that draws it."""

    name: str
    draw: Callable[[Evidence], Drawn | Absent]


OF_THE_PAPER: Final = (
    Entry("figure-1-decomposition", decomposition.by_substrate),
    Entry("figure-2-cold-start", cold_start.by_tier),
    Entry("figure-3-cold-start-distribution", cold_start.distribution),
    Entry("figure-4-composition-by-length", decomposition.by_length),
    Entry("figure-5-completion-time", trajectories.by_length),
    Entry("figure-6-worker-hours", scale.by_trajectories),
)
MORE: Final = (
    Entry("figure-7-action-tax", actions.tax_by_kind),
    Entry("figure-8-action-parts", actions.parts),
    Entry("figure-9-concurrency", load.by_concurrency),
    Entry("figure-10-warm-stages", cold_start.by_warmth),
    Entry("figure-11-crossovers", trajectories.crossovers),
    Entry("figure-12-failures", reliability.failures),
    Entry("figure-13-engine-steps", reliability.boundaries),
)
