"""The output of `dutyfree bench`: its progress, and medians where the extra `measure` is not installed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from dutyfree.cli.progress_bar import ASCII, FINE, Display
from dutyfree.formatting import duration, table

if TYPE_CHECKING:
    from dutyfree.measure.design.study import Condition
    from dutyfree.measure.results.records import Results, Trial
    from dutyfree.measure.run.study_runner import Progress

SAID_EVERY_S = 15.0
_BAR_COLUMNS = 20


class BenchProgress:
    """Shows the progress of a study: on a terminal in the line of `display`, elsewhere as a line every 15 s."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._signs = FINE if (sys.stderr.encoding or "").lower().replace("-", "") == "utf8" else ASCII
        self._said_s = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show the progress."""
        full = _BAR_COLUMNS * progress.done // max(1, progress.planned)
        bar = self._signs.full * full + self._signs.empty * (_BAR_COLUMNS - full)
        counts = f"{progress.done}/{progress.planned} trials"
        if progress.failed:
            counts += f", {progress.failed} failed"
        if progress.left_s is not None:
            counts += f", {duration(progress.left_s)} left"
        now = "" if progress.condition is None else condition_words(progress.condition)
        self._display.state.begin(f"{bar} {counts}", now)
        if not self._display.is_live and time.monotonic() - self._said_s >= SAID_EVERY_S:
            self._said_s = time.monotonic()
            self._display.say(counts)


def condition_words(condition: Condition) -> str:
    """Such as `cell T1 x50 cold`, with the number of sandboxes at once if it is not 1."""
    words = f"{condition.arm} {condition.workload} x{condition.length} {condition.warmth}"
    return words if condition.concurrency == 1 else f"{words}, {condition.concurrency} at once"


def condition_rows(results: Results) -> list[dict[str, Any]]:
    """One object for each condition: how many trials, how many failed, and plain medians of those that completed."""
    rows = []
    for condition, trials in _by_condition(results).items():
        done = [trial for trial in trials if trial.completed]
        rows.append(
            {
                "arm": condition.arm,
                "workload": condition.workload,
                "length": condition.length,
                "stage": str(condition.warmth),
                "concurrency": condition.concurrency,
                "trials": len(trials),
                "failed": len(trials) - len(done),
                "first_observation_ms": _median_ms([trial.first_observation_ns or 0 for trial in done]),
                "trajectory_ms": _median_ms([trial.wall_ns for trial in done]),
                "per_action_ms": _median_ms([trial.wall_ns / len(trial.actions) for trial in done]),
                "causes": sorted({trial.cause for trial in trials if not trial.completed})[:5],
            }
        )
    return rows


def plain_summary(results: Results) -> str:
    """A table of medians; it has no intervals, so it says nothing about their uncertainty."""
    head = (
        "substrate",
        "workload",
        "actions",
        "stage",
        "at once",
        "n",
        "failed",
        "first ms",
        "whole ms",
        "per action ms",
    )
    rows: list[tuple[str, ...]] = [head]
    for each in condition_rows(results):
        rows.append(
            (
                *(
                    str(each[name])
                    for name in ("arm", "workload", "length", "stage", "concurrency", "trials", "failed")
                ),
                *(_shown(each[name]) for name in ("first_observation_ms", "trajectory_ms", "per_action_ms")),
            )
        )
    return "\n".join(["medians", *table(rows, numbers=frozenset({2, *range(4, 10)}))])


def _by_condition(results: Results) -> dict[Condition, list[Trial]]:
    found: dict[Condition, list[Trial]] = {}
    for trial in results.trials:
        found.setdefault(trial.condition, []).append(trial)
    from dutyfree.measure.design.study import Warmth

    arms, warmths = [arm.name for arm in results.study.arms], list(Warmth)
    keys = sorted(
        found, key=lambda c: (c.workload, c.length, warmths.index(c.warmth), c.concurrency, arms.index(c.arm))
    )
    return {key: found[key] for key in keys}


def _median_ms(values_ns: list[float] | list[int]) -> float | None:
    from statistics import median  # slow to import, and most commands do not need it

    return round(median(values_ns) / 1e6, 4) if values_ns else None


def _shown(value_ms: float | None) -> str:
    return "" if value_ms is None else f"{value_ms:.3g}" if value_ms < 100 else f"{value_ms:.0f}"
