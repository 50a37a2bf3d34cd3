"""The default study of `dutyfree bench`, and the quick form of any study. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dutyfree.measure.design.file import with_null
from dutyfree.measure.design.study import Arm, Grid, Study, Warmth

DEFAULT_LIMIT_S: Final = 100.0
QUICK_LIMIT_S: Final = 45.0
QUICK_TRIALS: Final = 3
QUICK_LENGTH: Final = 10
DEFAULT_TRIAL_TIMEOUT_S: Final = 60.0


def default_study(arms: Sequence[Arm], able: Sequence[str]) -> Study:
    """A study of these arms that takes less than two minutes on a small machine.

    `able` are the names of the arms whose sandboxes have git and Python, which the workloads T1 and T2 need.
    """
    grids = [
        Grid(40, ("T0",), lengths=(1, 10)),
        Grid(12, ("T0",), lengths=(50, 150)),
        Grid(32, ("T0",), lengths=(10,), concurrencies=(4,)),
    ]
    if able:
        grids += [
            Grid(12, ("T1",), lengths=(1, 10), arms=tuple(able)),
            Grid(6, ("T1",), lengths=(10,), warmths=(Warmth.BASE, Warmth.REPOSITORY), arms=tuple(able)),
            Grid(6, ("T2",), lengths=(1, 10), arms=tuple(able)),
        ]
    return Study(
        name="what is here",
        arms=with_null(tuple(arms)),
        grids=tuple(grids),
        trial_timeout_s=DEFAULT_TRIAL_TIMEOUT_S,
        time_limit_s=DEFAULT_LIMIT_S,
    )


def quick(study: Study) -> Study:
    """The same study with a few short trials of each kind: a check that it works; its numbers mean little."""
    limit_s = QUICK_LIMIT_S if study.time_limit_s is None else min(QUICK_LIMIT_S, study.time_limit_s)
    return replace(study, grids=tuple(_quick(grid) for grid in study.grids), time_limit_s=limit_s)


def _quick(grid: Grid) -> Grid:
    lengths = tuple(dict.fromkeys(min(length, QUICK_LENGTH) for length in grid.lengths))
    trials = max(min(grid.trials, QUICK_TRIALS), *grid.concurrencies)
    return replace(grid, trials=trials, lengths=lengths)
