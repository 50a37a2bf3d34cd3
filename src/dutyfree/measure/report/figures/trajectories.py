"""How completion time grows with the number of actions: the paper's Figure 5, and where substrates change places."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dutyfree.measure import paper
from dutyfree.measure.design.study import Warmth
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, bounds_of
from dutyfree.measure.report.figures.cold_start import doubtful
from dutyfree.measure.report.picture import Absent, Drawn, new_figure
from dutyfree.measure.report.plots import HOLLOW, Row, arms_legend, dot_rows, interval_line, label, value_axis
from dutyfree.measure.report.style import INK, MUTED, PAPER, REFERENCE, WIDTH_IN, Look, looks
from dutyfree.measure.stats.analysis import Crossover, Growth, Metric, Series, Setting
from dutyfree.measure.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED = {"slowest": paper.SLOWEST_S, "fastest": paper.FASTEST_S}
"""Seconds, of a trajectory of 150 actions."""
Crossing = tuple[Crossover, Estimate]


def by_length(evidence: Evidence) -> Drawn | Absent:
    """Figure 5: completion time, and time per action, against the number of actions."""
    title = "Completion time by number of actions"
    workload = evidence.main_workload()
    whole, amortised = (_series(evidence, metric) for metric in (Metric.TRAJECTORY, Metric.AMORTISED_ACTION))
    if workload is None or not whole or not amortised:
        return Absent(title, "it needs trajectories of two lengths")
    look_of = looks(evidence.arms)
    figure = new_figure(3.9, WIDTH_IN)
    left, right = figure.subplots(1, 2)
    for axes, lines in ((left, whole), (right, amortised)):
        for line in lines:
            points = [(float(point.summary.condition.length), point.summary.p50) for point in line.points]
            hollow = [doubtful(point.summary) for point in line.points]
            interval_line(axes, points, look_of[line.condition.arm], doubtful=hollow)
        _length_axis(axes, [point.summary.condition.length for line in lines for point in line.points])
    is_papers = workload == paper.LONG_WORKLOAD
    references = PUBLISHED if is_papers and paper.LONG_STEPS in evidence.lengths() else {}
    for name, latency_s in references.items():
        left.plot(paper.LONG_STEPS, latency_s * words.MS_PER_S, marker="_", markersize=16, color=REFERENCE, zorder=4)
        left.annotate(
            f"paper, {name}: {latency_s:g} s",
            (paper.LONG_STEPS, latency_s * words.MS_PER_S),
            xytext=(-12, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7.5,
            color=MUTED,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
            zorder=4,
        )
    value_axis(left, "y", [*_values(whole), *(each * words.MS_PER_S for each in references.values())])
    value_axis(right, "y", _values(amortised))
    left.set_title("Whole trajectory")
    right.set_title("Divided by its actions")
    left.set_ylabel(f"p50 completion time ({words.name(workload, 24)})")
    right.set_ylabel("p50 time per action, all costs shared out")
    arms_legend(figure, {line.condition.arm: look_of[line.condition.arm] for line in whole})
    summaries = [point.summary for line in whole for point in line.points]
    return Drawn(
        figure,
        title,
        "From the start of creation to the end of destruction; bars are 95 % intervals of the median. To the right "
        f"the same, divided by the number of actions: what is paid once is shared out among them. {HOLLOW}",
        " ".join(f"{words.condition_of(each.condition)}: p50 {words.estimate_of(each.p50)}." for each in summaries),
        paper=f"The paper's {paper.LONG_WORKLOAD} at {paper.LONG_STEPS} actions: "
        + ", ".join(f"{name} {latency_s:g} s" for name, latency_s in PUBLISHED.items())
        + f", on other machines{'' if is_papers else ', and another workload than here'}.",
        caveats=tuple(dict.fromkeys(caveat for each in summaries for caveat in (*each.p50.caveats, *each.caveats))),
    )


def crossovers(evidence: Evidence) -> Drawn | Absent:
    """The lengths at which two arms take equally long."""
    title = "Where one substrate overtakes another"
    growths = {each.condition.arm: each for each in evidence.growths()}
    if len(growths) < 2:
        return Absent(title, "it needs two arms with trajectories of two lengths")
    crossing = [
        (each, each.length)
        for each in evidence.analysis.crossovers
        if each.length is not None and _is_about(each, growths.values())
    ]
    look_of = looks(evidence.arms)
    figure = new_figure(3.4 + (0.6 + 0.24 * len(crossing) if crossing else 0), WIDTH_IN)
    ratios = [9.0, 1.6 + len(crossing)] if crossing else [1.0]
    parts = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    _growth_lines(parts[0], evidence, growths, crossing)
    if crossing:
        _crossing_rows(parts[1], crossing, look_of)
    arms_legend(figure, {arm: look_of[arm] for arm in growths})
    doubts = [caveat for each in growths.values() for caveat in (*each.fixed.caveats, *each.caveats)]
    doubts += [caveat for each, length in crossing for caveat in (*length.caveats, *each.caveats)]
    return Drawn(
        figure,
        title,
        f"Lines: fixed time + actions {words.TIMES} time per action; dotted beyond what was measured. "
        + (
            "Rings are lengths at which two arms take equally long: below it the one, above it the other is faster. "
            f"Intervals are 95 %. {HOLLOW}"
            if crossing
            else "No two of these lines cross."
        ),
        " ".join(crossover_sentence(each) for each, _ in crossing) or "No two arms cross.",
        caveats=tuple(dict.fromkeys(doubts)),
    )


def _is_about(crossover: Crossover, growths: Iterable[Growth]) -> bool:
    """Whether the crossover is between two of these lines."""
    lines = {(Setting.of(each.condition).workload, each.condition.arm) for each in growths}
    arms = (crossover.short_arm, crossover.long_arm)
    is_serial = crossover.setting.warmth is Warmth.COLD and crossover.setting.concurrency == 1
    return is_serial and all((crossover.setting.workload, arm) in lines for arm in arms)


def _growth_lines(axes: Axes, evidence: Evidence, growths: dict[str, Growth], crossing: list[Crossing]) -> None:
    look_of = looks(evidence.arms)
    measured = sorted({length for growth in growths.values() for length in growth.lengths})
    most = max([measured[-1], *(length.value * 1.5 for _, length in crossing)])
    lengths = sorted({*measured, *(math.exp(math.log(most) * step / 120) for step in range(121))})
    for arm, growth in growths.items():
        longest = growth.lengths[-1]
        known, beyond = ([each for each in lengths if keep(each, longest)] for keep in (operator.le, operator.ge))
        for dash, part in ((look_of[arm].dash, known), (":", beyond)):
            axes.plot(part, [_time_ms(growth, each) for each in part], color=look_of[arm].colour, linestyle=dash)
    for line in _series(evidence, Metric.TRAJECTORY):
        if line.condition.arm in growths:
            points = [(point.summary.condition.length, point.summary.mean.value) for point in line.points]
            look = look_of[line.condition.arm]
            axes.plot(*zip(*points, strict=True), color=look.colour, marker=look.marker, linestyle="none")
    for each, length in crossing:
        at_ms = _time_ms(growths[each.short_arm], length.value)
        axes.plot(length.value, at_ms, marker="o", markersize=11, markerfacecolor="none", markeredgecolor=INK, zorder=5)
    _length_axis(axes, [1, *measured], most=most)
    value_axis(axes, "y", [_time_ms(growth, each) for growth in growths.values() for each in lengths])
    axes.set_ylabel(f"mean time ({words.name(evidence.main_workload() or '', 24)})")
    axes.set_title("Mean times, and the lines fitted to them")


def crossover_sentence(crossover: Crossover) -> str:
    """The crossover in one sentence."""
    short, long = words.name(crossover.short_arm), words.name(crossover.long_arm)
    if crossover.length is None:
        return f"{short} is faster than {long} at every length."
    return f"{short} is faster than {long} below {words.estimate_of(crossover.length)}, and slower above."


def _crossing_rows(axes: Axes, crossing: list[Crossing], look_of: dict[str, Look]) -> None:
    rows = [
        Row(
            f"{label(each.short_arm)}, then {label(each.long_arm)}",
            length,
            look_of[each.long_arm],
            bool(each.caveats or length.caveats),
            words.estimate_of(length),
        )
        for each, length in crossing
    ]
    values = bounds_of([length for _, length in crossing])
    dot_rows(axes, rows, values=values, room=0.6, tick_text=lambda value: f"{value:,g}")
    axes.set_xlabel("actions at which the first is overtaken by the second")


def _series(evidence: Evidence, metric: Metric) -> list[Series]:
    return [
        line
        for line in evidence.analysis.series(metric, "length")
        if line.condition.workload == evidence.main_workload()
        and line.condition.arm in evidence.arms
        and line.condition.warmth is evidence.warmth
        and line.condition.concurrency == 1
    ]


def _values(lines: list[Series]) -> list[float]:
    return bounds_of([point.summary.p50 for line in lines for point in line.points])


def _time_ms(growth: Growth, length: float) -> float:
    return growth.fixed.value + growth.per_action.value * length


def _length_axis(axes: Axes, lengths: list[int], most: float = 0.0) -> None:
    from matplotlib.ticker import NullLocator

    marks = sorted(set(lengths))
    axes.set_xscale("log")
    axes.set_xlim(min(marks) / 1.25, max(most, marks[-1] * 1.25))
    axes.set_xticks(marks, [f"{each:,}" for each in marks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("actions in the trajectory")
