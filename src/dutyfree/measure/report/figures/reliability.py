"""Trials that did not complete, and the engine's own boundaries within those that did."""

from __future__ import annotations

from dutyfree import formatting
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, bounds_of
from dutyfree.measure.report.picture import Absent, Drawn, new_figure
from dutyfree.measure.report.plots import Row, dot_rows, label, parts_legend, stacked_rows
from dutyfree.measure.report.style import INK, MUTED, WIDTH_IN, looks
from dutyfree.measure.results.records import TrialOutcome
from dutyfree.measure.stats.analysis import Failures, Step

OUTCOMES = {
    TrialOutcome.UNFAITHFUL: "#e69f00",
    TrialOutcome.INFRA_FAILED: "#d55e00",
    TrialOutcome.TIMED_OUT: "#0072b2",
    TrialOutcome.NOT_COLD: "#56b4e9",
}
MOST_CONDITIONS = 14
"""The most conditions that are drawn; the table has all."""


def failures(evidence: Evidence) -> Drawn | Absent:
    """How many trials of each arm did not complete, and the conditions in which that happened most."""
    title = "Trials that did not complete"
    tried = [each for each in evidence.analysis.failures if each.condition.arm in evidence.arms and each.attempted]
    if not tried:
        return Absent(title, "no trial was run")
    worst = sorted((each for each in tried if each.failed), key=lambda each: -each.rate.value)[:MOST_CONDITIONS]
    figure = new_figure(1.25 + 0.27 * len(evidence.arms) + (0.8 + 0.24 * len(worst) if worst else 0.0), WIDTH_IN)
    grid = figure.subplots(
        2 if worst else 1,
        1,
        squeeze=False,
        height_ratios=[1.5 + len(evidence.arms), 1.5 + len(worst)] if worst else None,
    )[:, 0]
    bars, totals = [], []
    for arm in evidence.arms:
        own = [each for each in tried if each.condition.arm == arm]
        attempted, failed = sum(each.attempted for each in own), sum(each.failed for each in own)
        bars.append(
            {
                outcome: 100 * sum(each.by_outcome.get(outcome, 0) for each in own) / attempted if attempted else 0.0
                for outcome in OUTCOMES
            }
        )
        totals.append(f"{failed:,} of {attempted:,}" if attempted else "not run")
    stacked_rows(grid[0], [label(arm) for arm in evidence.arms], bars, OUTCOMES, totals=totals)
    grid[0].set_xlim(0, max(1.0, 1.25 * max(sum(bar.values()) for bar in bars)))
    grid[0].xaxis.set_major_formatter(lambda value, _: _percent(value))
    grid[0].set_xlabel("share of all trials of the arm")
    if worst:
        look_of = looks(evidence.arms)
        rows = [
            Row(
                _named(each),
                each.rate,
                look_of[each.condition.arm],
                note=f"{words.estimate_of(each.rate)}, {each.failed} of {each.attempted}",
            )
            for each in worst
        ]
        dot_rows(
            grid[1],
            rows,
            values=bounds_of([each.rate for each in worst]),
            room=0.45,
            log=False,
            tick_text=lambda value: _percent(100 * value),
        )
        grid[1].set_xlabel("rate in one condition, with its 95 % interval")
    parts_legend(figure, {each: OUTCOMES[each] for each in OUTCOMES if any(bar[each] for bar in bars)})
    left_out = sum(bool(each.failed) for each in tried) - len(worst)
    return Drawn(
        figure,
        title,
        "A trial that failed is counted and never timed. Unfaithful: an action did not return the expected "
        "observation."
        + (f" {formatting.count(left_out, 'more condition')} with failures in the table below." if left_out else ""),
        " ".join(f"{words.name(arm)}: {total} failed." for arm, total in zip(evidence.arms, totals, strict=True)),
        caveats=tuple(dict.fromkeys(caveat for each in worst for caveat in each.rate.caveats)),
    )


def boundaries(evidence: Evidence) -> Drawn | Absent:
    """Mean time between the substrate's own boundaries within creation and destruction."""
    title = "Inside creation and destruction: the engines' own steps"
    steps = _steps(evidence)
    if not steps:
        return Absent(title, "no substrate here marks steps of its own")
    look_of = looks(evidence.arms)
    arms = [arm for arm in evidence.arms if any(each.condition.arm == arm for each in steps)]
    figure = new_figure(0.7 + 0.22 * len(steps) + 0.18 * len(arms), WIDTH_IN)
    grid = figure.subplots(
        len(arms),
        1,
        squeeze=False,
        sharex=True,
        height_ratios=[sum(each.condition.arm == arm for each in steps) + 0.3 for arm in arms],
    )
    every_value = bounds_of([each.p50 for each in steps])
    for axes, arm in zip(grid[:, 0], arms, strict=True):
        own = [each for each in steps if each.condition.arm == arm]
        rows = [
            Row(
                words.name(each.name, 34),
                each.p50,
                look_of[arm],
                bool(each.caveats or each.p50.caveats),
                words.estimate_of(each.p50),
            )
            for each in own
        ]
        dot_rows(axes, rows, values=every_value, room=0.3)
        axes.spines["bottom"].set_visible(axes is grid[-1, 0])
        axes.set_title(label(arm), fontsize=8.5, color=INK)
        axes.tick_params(axis="x", which="both", length=0, color=MUTED)
    grid[-1, 0].set_xlabel("p50 of the step, over the trials that have it")
    condition = steps[0].condition
    return Drawn(
        figure,
        title,
        f"As each substrate marks them itself ({words.name(condition.workload)}, "
        f"{formatting.count(condition.length, 'action')}, cold). What lies between marked steps belongs to the phase, "
        "not to a step. Bars are 95 % intervals.",
        " ".join(
            f"{words.name(each.condition.arm)}, {words.name(each.name)}: {words.estimate_of(each.p50)}."
            for each in steps
        ),
        caveats=tuple(dict.fromkeys(caveat for each in steps for caveat in (*each.p50.caveats, *each.caveats))),
    )


def _steps(evidence: Evidence) -> list[Step]:
    """The steps of the shortest trials of the main workload, by arm, in order of time."""
    chosen = [each for each in evidence.cold_start_settings() if each.workload == evidence.main_workload()]
    return [
        each
        for setting in chosen
        for arm in evidence.arms
        for each in evidence.analysis.steps
        if each.condition == setting.on(arm)
    ]


def _percent(value: float) -> str:
    """The text of a tick; empty above 100 %, because the axis may extend beyond it."""
    return f"{value:g} %" if value <= 100 else ""


def _named(each: Failures) -> str:
    condition = each.condition
    where = f"{label(condition.arm)}, {words.name(condition.workload, 12)}, {condition.length}"
    if condition.warmth != "cold":
        where += f", {condition.warmth}"
    return where + (f", {condition.concurrency} at once" if condition.concurrency > 1 else "")
