"""The residue: how much of the trials' time no span covers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from dutyfree.measure.design.study import Condition
from dutyfree.measure.results.records import Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.findings import Residue
from dutyfree.model import Phase


def residue(condition: Condition, trials: Sequence[Trial]) -> Residue:
    """The residue of completed trials; at least one."""
    shares = [_share(trial) for trial in trials]
    over = sum(share > caveats.RESIDUE_LIMIT for share in shares)
    doubts = (caveats.residue(over, len(shares), max(shares)),) if over else ()
    return Residue(condition, len(shares), median(shares), max(shares), over, doubts)


def _share(trial: Trial) -> float:
    return trial.by_phase.get(Phase.UNATTRIBUTED, 0) / trial.wall_ns if trial.wall_ns else 0.0
