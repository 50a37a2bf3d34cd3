"""What happens to one sandbox's latency while others run beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dutyfree import formatting
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, bounds_of
from dutyfree.measure.report.picture import Absent, Drawn, new_figure
from dutyfree.measure.report.plots import HOLLOW, arms_legend, interval_line, value_axis
from dutyfree.measure.report.style import MUTED, WIDTH_IN, looks
from dutyfree.measure.stats.analysis import Metric, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def by_concurrency(evidence: Evidence) -> Drawn | Absent:
    """Action latency, and the trial's service and response time, against the number of sandboxes at once."""
    title = "Latency while other sandboxes run"
    action = evidence.load_series(Metric.ACTION)
    if not action:
        return Absent(title, "it needs trials at two concurrencies")
    service, response = (evidence.load_series(metric) for metric in (Metric.TRAJECTORY, Metric.RESPONSE))
    look_of = looks(evidence.arms)
    figure = new_figure(4.0, WIDTH_IN)
    left, right = figure.subplots(1, 2)
    values: dict[Axes, list[float]] = {left: [], right: []}
    for axes, lines, quantile, dash in (
        (left, action, "p50", "-"),
        (left, action, "p95", ":"),
        (right, service, "p50", "-"),
        (right, response, "p50", "--"),
    ):
        for line in lines:
            points = [
                (float(each.summary.condition.concurrency), getattr(each.summary, quantile)) for each in line.points
            ]
            hollow = [bool(each.summary.caveats or getattr(each.summary, quantile).caveats) for each in line.points]
            interval_line(axes, points, look_of[line.condition.arm], doubtful=hollow, dash=dash)
            values[axes] += bounds_of([estimate for _, estimate in points])
    for axes in (left, right):
        _concurrency_axis(
            axes, [point.summary.condition.concurrency for line in (*action, *response) for point in line.points]
        )
        value_axis(axes, "y", values[axes])
    left.set_title("One action")
    right.set_title("Whole trial")
    left.set_ylabel("action latency (median within a sandbox)")
    right.set_ylabel("p50 time of a trial")
    arms_legend(
        figure,
        {line.condition.arm: look_of[line.condition.arm] for line in action},
        extra=[
            ("p50 (right: service time)", {"color": MUTED, "linestyle": "-"}),
            ("p95", {"color": MUTED, "linestyle": ":"}),
            ("p50 of response time", {"color": MUTED, "linestyle": "--"}),
        ],
    )
    condition = action[0].condition
    summaries = [point.summary for line in action for point in line.points]
    return Drawn(
        figure,
        title,
        f"{words.name(condition.workload)}, {formatting.count(condition.length, 'action')}, "
        f"{words.warmth_of(condition.warmth)}. Open loop: trials start when they are due, whether or not others are "
        "done; response time counts from then, service time from when the trial really began. One at a time, the next "
        f"begins when the last is over. Bars are 95 % intervals. {HOLLOW}",
        " ".join(map(_described, summaries)),
        caveats=tuple(
            dict.fromkeys(
                caveat for each in summaries for caveat in (*each.p50.caveats, *each.p95.caveats, *each.caveats)
            )
        ),
    )


def _concurrency_axis(axes: Axes, levels: list[int]) -> None:
    from matplotlib.ticker import NullLocator

    marks = sorted(set(levels))
    axes.set_xscale("log")
    axes.set_xlim(marks[0] / 1.2, marks[-1] * 1.2)
    axes.set_xticks(marks, [str(each) for each in marks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("sandboxes at once")


def _described(summary: Summary) -> str:
    return (
        f"{words.condition_of(summary.condition)}: action p50 {words.estimate_of(summary.p50)}, "
        f"p95 {words.estimate_of(summary.p95)}."
    )
