"""Time to the first observation: the paper's Figures 2 and 3, and the effect of warm stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dutyfree import formatting
from dutyfree.measure import paper
from dutyfree.measure.design.study import Condition
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, bounds_of, extremes
from dutyfree.measure.report.picture import Absent, Drawn, new_figure
from dutyfree.measure.report.plots import HOLLOW, LOG_ABOVE, Row, arms_legend, dot_rows, label, panel_grid, value_axis
from dutyfree.measure.report.style import REFERENCE, WIDTH_IN, Look, looks
from dutyfree.measure.stats.analysis import Metric, Setting, Summary
from dutyfree.measure.stats.estimate import Caveat

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC = Metric.FIRST_OBSERVATION
COLUMNS = 3


def by_tier(evidence: Evidence) -> Drawn | Absent:
    """Figure 2: the median of each arm, a panel for each workload."""
    title = "Cold start at the median, by substrate and workload"
    panels = [(setting, evidence.summaries(setting, METRIC)) for setting in evidence.cold_start_settings()]
    if not panels:
        return Absent(title, "no cold trial completed")
    figure, grid = panel_grid(len(panels), COLUMNS, 0.55 + 0.27 * len(evidence.arms), 0.75)
    every_value = bounds_of([summary.p50 for _, summaries in panels for summary in summaries.values()])
    look_of = looks(evidence.arms)
    for position, (axes, (setting, summaries)) in enumerate(zip(grid, panels, strict=True)):
        rows = [
            Row(label(arm), None, look_of[arm], note=_why_none(evidence, setting.on(arm)))
            if (summary := summaries.get(arm)) is None
            else Row(label(arm), summary.p50, look_of[arm], doubtful(summary))
            for arm in evidence.arms
        ]
        dot_rows(axes, rows, values=every_value, named=position % COLUMNS == 0)
        axes.set_title(_titled(setting.workload, summaries))
        axes.set_xlabel("p50 to first observation")
    published = ", ".join(f"{ratio:g}{words.TIMES} at {tier}" for tier, ratio in paper.COLD_START_SPREAD.items())
    return Drawn(
        figure,
        title,
        "From the start of creation to the end of the first action, set-up included; bars are 95 % intervals of the "
        f"median. The spread is the slowest arm's median over the fastest's. {HOLLOW}",
        " ".join(_described(summary) for _, summaries in panels for summary in summaries.values()),
        paper=f"The paper's cloud VM against its hosted sandbox: {published}. It published no medians.",
        caveats=_caveats(summary for _, summaries in panels for summary in summaries.values()),
    )


def distribution(evidence: Evidence) -> Drawn | Absent:
    """Figure 3: every cold start, as the share of trials that took no longer."""
    title = "How cold starts are distributed"
    samples = {setting: _samples(evidence, setting) for setting in evidence.cold_start_settings()}
    if not any(samples.values()):
        return Absent(title, "no cold trial completed")
    look_of = looks(evidence.arms)
    figure, grid = panel_grid(len(samples), COLUMNS, 2.5, 0.75)
    # All panels have the same axis, so that shapes can be compared.
    is_log = any(
        max(map(max, shown.values())) / min(map(min, shown.values())) > LOG_ABOVE for shown in samples.values() if shown
    )
    for position, (axes, (setting, shown)) in enumerate(zip(grid, samples.items(), strict=True)):
        value_axis(axes, "x", [value for values in shown.values() for value in values], log=is_log)
        for arm, values in shown.items():
            _steps(axes, values, look_of[arm])
        axes.axhline(0.95, color=REFERENCE, linewidth=0.8, linestyle=":")
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 0.95], ["0 %", "25 %", "50 %", "75 %", "95 %"])
        axes.grid(True, axis="y")
        axes.set_title(words.name(setting.workload, 24))
        axes.set_xlabel("time to first observation")
        if position % COLUMNS == 0:
            axes.set_ylabel("trials that took no longer")
    arms_legend(figure, {arm: look_of[arm] for arm in evidence.arms if any(arm in shown for shown in samples.values())})
    summaries = [summary for setting in samples for summary in evidence.summaries(setting, METRIC).values()]
    return Drawn(
        figure,
        title,
        "Every trial that completed is a step; nothing is trimmed. The marker is the median, the dotted line the 95 "
        "% that p95 is read at.",
        " ".join(f"{_described(summary)[:-1]}, p95 {words.value_of(summary.p95)}." for summary in summaries),
        paper="The paper's Figure 3 gives no numbers; it found orchestrated containers steady and the hosted sandbox "
        "fastest at the median, but more variable on light workloads.",
        caveats=_caveats(summaries),
    )


def by_warmth(evidence: Evidence) -> Drawn | Absent:
    """Time to the first observation from each warm stage, against cold."""
    title = "What a warm stage saves before the first observation"
    lines = [
        line
        for line in evidence.analysis.series(METRIC, "warmth")
        if line.condition.arm in evidence.arms and line.condition.concurrency == 1
    ]
    if not lines:
        return Absent(title, "it needs trials from a warm stage beside cold ones")
    against_cold = {each.condition: each for each in evidence.analysis.warmth_ratios if each.metric is METRIC}
    look_of = looks(evidence.arms)
    figure = new_figure(0.6 + sum(0.42 + 0.24 * len(line.points) for line in lines), WIDTH_IN)
    grid = figure.subplots(
        len(lines), 1, squeeze=False, sharex=True, height_ratios=[len(each.points) + 1.2 for each in lines]
    )
    every_value = bounds_of([point.summary.p50 for line in lines for point in line.points])
    for axes, line in zip(grid[:, 0], lines, strict=True):
        rows = []
        for point in line.points:
            note = words.value_of(point.summary.p50)
            if ratio := against_cold.get(point.summary.condition):
                note += f"; {words.part_of(ratio.ratio)} of cold"
            look = look_of[line.condition.arm]
            rows.append(Row(str(point.at), point.summary.p50, look, doubtful(point.summary), note))
        dot_rows(axes, rows, values=every_value)
        setting = f"{words.name(line.condition.workload, 24)}, {formatting.count(line.condition.length, 'action')}"
        axes.set_title(f"{label(line.condition.arm)}: {setting}")
    grid[-1, 0].set_xlabel("p50 to first observation")
    summaries = [point.summary for line in lines for point in line.points]
    return Drawn(
        figure,
        title,
        "A warm sandbox has the stages up to the one named before the clock starts. Marks are medians; the part of "
        f"cold is of geometric means on the same arm, with its 95 % interval. {HOLLOW}",
        " ".join(map(_described, summaries)),
        caveats=_caveats(summaries),
    )


def _why_none(evidence: Evidence, condition: Condition) -> str:
    was_tried = any(each.condition == condition for each in evidence.analysis.failures)
    return "none completed" if was_tried else "not run"


def doubtful(summary: Summary) -> bool:
    """Whether its median has a caveat."""
    return bool(summary.caveats or summary.p50.caveats)


def _samples(evidence: Evidence, setting: Setting) -> dict[str, list[float]]:
    """Every cold start by arm, ascending."""
    values = {
        arm: sorted(value for trial in evidence.trials_of(setting.on(arm)) if (value := METRIC.of(trial)))
        for arm in evidence.arms_in(setting)
    }
    return {arm: each for arm, each in values.items() if each}


def _steps(axes: Axes, values: list[float], look: Look) -> None:
    shares = [rank / len(values) for rank in range(len(values) + 1)]
    axes.step([values[0], *values], shares, where="post", color=look.colour, linestyle=look.dash)
    middle = (len(values) - 1) // 2
    axes.plot(values[middle], shares[middle + 1], marker=look.marker, color=look.colour)


def _caveats(summaries: Iterable[Summary]) -> tuple[Caveat, ...]:
    return tuple(dict.fromkeys(caveat for each in summaries for caveat in (*each.p50.caveats, *each.caveats)))


def _titled(workload: str, summaries: dict[str, Summary]) -> str:
    name, ends = words.name(workload, 24), extremes(summaries)
    if ends is None:
        return name
    spread = f"spread {words.times(ends[1].p50.value / ends[0].p50.value)}"
    return f"{name}: {spread}" if len(name) <= 8 else f"{name}\n{spread}"


def _described(summary: Summary) -> str:
    return f"{words.condition_of(summary.condition)}: p50 {words.estimate_of(summary.p50)}."
