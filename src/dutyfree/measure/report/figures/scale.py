"""Worker-hours at the scale of training: the paper's Figure 6."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dutyfree.measure import paper
from dutyfree.measure.project import Projection, worker_hours
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, bounds_of
from dutyfree.measure.report.picture import Absent, Drawn, new_figure
from dutyfree.measure.report.plots import HOLLOW, Row, arms_legend, dot_rows, label
from dutyfree.measure.report.style import REFERENCE, WIDTH_IN, Look, looks
from dutyfree.measure.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OF_PAPER = {"paper, slowest": (paper.SLOWEST, "--"), "paper, fastest": (paper.FASTEST, ":")}


def by_trajectories(evidence: Evidence) -> Drawn | Absent:
    """Figure 6: worker-hours from 10,000 to 1,000,000 trajectories, and those at the end in numbers."""
    projection = evidence.projection
    scale_of = f"{paper.LONG_STEPS}-step trajectories"
    title = f"Projection: worker-hours for {scale_of}"
    if projection is None:
        return Absent(title, "no cold trial completed")
    figure = new_figure(0.9 + max(2.6, 0.27 * (len(projection.arms) + 2)), WIDTH_IN)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    look_of = looks(evidence.arms)
    _lines(left, projection, look_of)
    _rows(right, projection, look_of)
    extra = [(name, {"color": REFERENCE, "linestyle": dash}) for name, (_, dash) in OF_PAPER.items()]
    arms_legend(figure, {each.arm: look_of[each.arm] for each in projection.arms}, extra)
    spread = "" if projection.spread_ratio is None else f" The spread here is {words.times(projection.spread_ratio)}."
    return Drawn(
        figure,
        title,
        f"Extrapolated, not measured: trajectories {words.TIMES} mean time of one / 3,600 s, from "
        f"{projection.source}; the measurement's 95 % interval carried through.{spread} {HOLLOW}",
        " ".join(
            f"{words.name(each.arm)}: {words.estimate_of(each.worker_hours)} for {paper.TRAJECTORIES:,} trajectories."
            for each in projection.arms
        ),
        paper=f"The paper's {paper.LONG_WORKLOAD} for {paper.TRAJECTORIES:,} trajectories"
        + ("" if evidence.main_workload() == paper.LONG_WORKLOAD else ", another workload than here")
        + f": {paper.SLOWEST.worker_hours:,} h on the slowest substrate, {paper.FASTEST.worker_hours:,} h on the "
        f"fastest, a spread of {paper.WORKER_HOURS_SPREAD:g}{words.TIMES}.",
        caveats=tuple(dict.fromkeys(caveat for each in projection.arms for caveat in each.caveats)),
    )


def _lines(axes: Axes, projection: Projection, look_of: dict[str, Look]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ends = list(paper.FIGURE_6_TRAJECTORIES)
    for each in projection.arms:
        look, latency = look_of[each.arm], each.latency
        axes.plot(ends, [worker_hours(latency.value, n) for n in ends], color=look.colour, linestyle=look.dash)
        if latency.low is not None and latency.high is not None:
            low, high = ([worker_hours(bound, n) for n in ends] for bound in (latency.low, latency.high))
            axes.fill_between(ends, low, high, color=look.colour, alpha=0.18, linewidth=0)
    for published, dash in OF_PAPER.values():
        hours = [worker_hours(published.consistent_s, n) for n in ends]
        axes.plot(ends, hours, color=REFERENCE, linestyle=dash, linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlabel="trajectories", ylabel="worker-hours", title="As the run grows")
    axes.set_xticks([10**power for power in range(round(math.log10(ends[0])), round(math.log10(ends[-1])) + 1)])
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    axes.grid(True)


def _rows(axes: Axes, projection: Projection, look_of: dict[str, Look]) -> None:
    rows = [
        Row(
            label(each.arm),
            each.worker_hours,
            look_of[each.arm],
            bool(each.caveats),
            words.estimate_of(each.worker_hours),
        )
        for each in projection.arms
    ]
    grey = Look(REFERENCE, "|", "-")
    for name, (published, _) in OF_PAPER.items():
        known = Estimate(float(published.worker_hours), None, None, 0, "h")
        rows.append(Row(name, known, grey))
    rows.sort(key=lambda row: row.estimate.value if row.estimate else 0.0)
    values = bounds_of([row.estimate for row in rows if row.estimate])
    dot_rows(
        axes, rows, values=values, room=0.75, tick_text=lambda value: f"{value:,.0f}" if value >= 1 else f"{value:g}"
    )
    axes.set_title(f"At {paper.TRAJECTORIES:,} trajectories")
    axes.set_xlabel("worker-hours")
