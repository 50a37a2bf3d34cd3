"""Where the time of a trajectory goes: the paper's Figures 1 and 4."""

from __future__ import annotations

from collections.abc import Iterable

from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.picture import Absent, Drawn, new_figure
from dutyfree.measure.report.plots import label, parts_legend, stacked_rows, value_axis
from dutyfree.measure.report.style import INK, PHASE_COLOURS, WIDTH_IN
from dutyfree.measure.stats.analysis import Composition, Setting
from dutyfree.model import Phase

LEAST_SHARE = 0.002
"""A phase with a smaller share in every bar is not in the legend, but still in the bars."""


def by_substrate(evidence: Evidence) -> Drawn | Absent:
    """Figure 1: mean time by phase, a panel for each workload."""
    title = "Where a trajectory's time goes, by substrate"
    panels = [(setting, _compositions(evidence, setting)) for setting in evidence.short_settings()]
    if not panels:
        return Absent(title, "no trial completed")
    figure = new_figure(0.95 + sum(0.5 + 0.25 * len(bars) for _, bars in panels), WIDTH_IN)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[1.2 + len(bars) for _, bars in panels])
    for axes, (setting, bars) in zip(grid[:, 0], panels, strict=True):
        stacked_rows(
            axes,
            [label(bar.condition.arm) for bar in bars],
            [bar.by_phase_ms for bar in bars],
            PHASE_COLOURS,
            totals=[f"{words.duration(bar.wall_ms)}, {words.share(bar.tax_share.value)} tax" for bar in bars],
        )
        value_axis(axes, "x", [bar.wall_ms for bar in bars], log=False)
        axes.set_xlim(0, max(bar.wall_ms for bar in bars) * 1.28)
        axes.set_title(words.setting_of(setting))
    grid[-1, 0].set_xlabel("mean time (phases add up to the whole)")
    parts_legend(figure, _phases_in(bar for _, bars in panels for bar in bars))
    return Drawn(
        figure,
        title,
        "Mean over the trials that completed, so that the parts add up. Grey is the commands' own execution; every "
        "colour is tax.",
        " ".join(_described(bar) for _, bars in panels for bar in bars),
        paper="The paper's Figure 1 shows T2 only and gives no numbers; its finding is that containers pay in actions "
        "and set-up, stronger isolation in creation and readiness.",
        caveats=tuple(dict.fromkeys(each for _, bars in panels for bar in bars for each in bar.caveats)),
    )


def by_length(evidence: Evidence) -> Drawn | Absent:
    """Figure 4: shares of the whole by phase, each arm at each length."""
    workload, lengths = evidence.main_workload(), evidence.lengths()
    title = "What a trajectory consists of, by its length"
    if workload is None or len(lengths) < 2:
        return Absent(title, "it needs trajectories of two lengths")
    bars = [
        bar
        for arm in evidence.arms
        for length in lengths
        for bar in evidence.analysis.compositions
        if bar.condition == Setting(workload, length, evidence.warmth).on(arm)
    ]
    arms = list(dict.fromkeys(bar.condition.arm for bar in bars))
    figure = new_figure(1.3 + 0.2 * len(bars) + 0.12 * len(arms), WIDTH_IN)
    grid = figure.subplots(
        len(arms),
        1,
        squeeze=False,
        sharex=True,
        height_ratios=[sum(bar.condition.arm == arm for bar in bars) + 0.2 for arm in arms],
    )
    for axes, arm in zip(grid[:, 0], arms, strict=True):
        own = [bar for bar in bars if bar.condition.arm == arm]
        stacked_rows(
            axes,
            [f"{bar.condition.length}" for bar in own],
            [{phase: 100 * bar.share(phase) for phase in bar.by_phase_ms} for bar in own],
            PHASE_COLOURS,
            totals=[words.duration(bar.wall_ms) for bar in own],
        )
        axes.set_xlim(0, 109)
        axes.set_xticks(range(0, 101, 20), [f"{tick} %" for tick in range(0, 101, 20)])
        axes.set_ylabel(label(arm), rotation=0, ha="right", va="center", labelpad=12, color=INK, fontweight="bold")
        axes.spines["bottom"].set_visible(axes is grid[-1, 0])
        axes.tick_params(axis="x", length=0)
    grid[-1, 0].set_xlabel(
        f"share of the mean time of a trajectory ({words.name(workload)}); rows are numbers of actions"
    )
    parts_legend(figure, _phases_in(bars))
    return Drawn(
        figure,
        title,
        "Each row is a number of actions, its mean completion time to the right. Dispatch, execute and observe are "
        "paid by every action, all else once.",
        " ".join(_described(bar) for bar in bars),
        paper="The paper's Figure 4 gives no numbers; its finding is that fixed costs are most visible at 10 actions "
        "and execution dominates at 150.",
        caveats=tuple(dict.fromkeys(each for bar in bars for each in bar.caveats)),
    )


def _compositions(evidence: Evidence, setting: Setting) -> list[Composition]:
    by_condition = {bar.condition: bar for bar in evidence.analysis.compositions}
    return [by_condition[setting.on(arm)] for arm in evidence.arms_in(setting)]


def _phases_in(bars: Iterable[Composition]) -> dict[Phase, str]:
    shown = list(bars)
    return {
        phase: colour
        for phase, colour in PHASE_COLOURS.items()
        if any(bar.share(phase) >= LEAST_SHARE for bar in shown)
    }


def _described(bar: Composition) -> str:
    parts = ", ".join(
        f"{phase} {words.duration(spent)}"
        for phase, spent in bar.by_phase_ms.items()
        if bar.share(phase) >= LEAST_SHARE
    )
    return f"{words.condition_of(bar.condition)}: {words.duration(bar.wall_ms)} ({parts})."
