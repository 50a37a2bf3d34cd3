"""What one action costs: its tax by kind of action, and where its time goes."""

from __future__ import annotations

from dutyfree import formatting
from dutyfree.measure.report import words
from dutyfree.measure.report.evidence import Evidence, bounds_of
from dutyfree.measure.report.picture import Absent, Drawn
from dutyfree.measure.report.plots import (
    HOLLOW,
    Row,
    dot_rows,
    label,
    panel_grid,
    parts_legend,
    stacked_rows,
    value_axis,
)
from dutyfree.measure.report.style import PHASE_COLOURS, looks
from dutyfree.measure.stats.analysis import KindTax
from dutyfree.measure.stats.estimate import Caveat
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase

COLUMNS = 2
PARTS = {phase: PHASE_COLOURS[phase] for phase in (Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE)}


def tax_by_kind(evidence: Evidence) -> Drawn | Absent:
    """The median tax of an action, a panel for each kind."""
    title = "Tax of one action, by kind of action"
    panels = _by_kind(evidence)
    if not panels:
        return Absent(title, "no trial with actions completed")
    look_of = looks(evidence.arms)
    every_value = bounds_of([each.tax for taxes in panels.values() for each in taxes])
    figure, grid = panel_grid(len(panels), COLUMNS, 0.65 + 0.25 * _most_rows(panels), 0.35)
    for axes, (kind, taxes) in zip(grid, panels.items(), strict=True):
        rows = [
            Row(
                label(each.condition.arm), each.tax, look_of[each.condition.arm], bool(each.caveats or each.tax.caveats)
            )
            for each in taxes
        ]
        dot_rows(axes, rows, values=every_value, room=0.25)
        axes.set_title(str(kind))
        axes.set_xlabel("dispatch + observe, p50 over sandboxes")
    shown = [each for taxes in panels.values() for each in taxes]
    return Drawn(
        figure,
        title,
        f"What the substrate adds to a command's own time ({_setting(shown)}). Bars are 95 % intervals. {HOLLOW}",
        " ".join(f"{label(each.condition.arm)}, {each.kind}: {words.estimate_of(each.tax)}." for each in shown),
        caveats=_caveats(shown),
    )


def parts(evidence: Evidence) -> Drawn | Absent:
    """Dispatch, execution and observation of an action, a panel for each kind."""
    title = "Dispatch, execute and observe"
    panels = _by_kind(evidence)
    if not panels:
        return Absent(title, "no trial with actions completed")
    figure, grid = panel_grid(len(panels), COLUMNS, 0.65 + 0.25 * _most_rows(panels), 0.65)
    for axes, (kind, taxes) in zip(grid, panels.items(), strict=True):
        bars = [
            {Phase.DISPATCH: each.dispatch_ms, Phase.EXECUTE: each.execute_ms, Phase.OBSERVE: each.observe_ms}
            for each in taxes
        ]
        wholes = [sum(bar.values()) for bar in bars]
        totals = [
            f"{words.duration(whole)}, {words.share(1 - bar[Phase.EXECUTE] / whole if whole else 0.0)} tax"
            for bar, whole in zip(bars, wholes, strict=True)
        ]
        stacked_rows(axes, [label(each.condition.arm) for each in taxes], bars, PARTS, totals=totals)
        value_axis(axes, "x", wholes, log=False)
        axes.set_xlim(0, (max(wholes) or 1.0) * 1.6)
        axes.set_title(str(kind))
        axes.set_xlabel("mean time of an action")
    parts_legend(figure, PARTS)
    shown = [each for taxes in panels.values() for each in taxes]
    return Drawn(
        figure,
        title,
        f"Execution is what the guest itself measured; the rest is the way in and out ({_setting(shown)}).",
        " ".join(
            f"{label(each.condition.arm)}, {each.kind}: dispatch {words.duration(each.dispatch_ms)}, execute "
            f"{words.duration(each.execute_ms)}, observe {words.duration(each.observe_ms)}."
            for each in shown
        ),
        caveats=_caveats(shown),
    )


def _by_kind(evidence: Evidence) -> dict[ActionKind, list[KindTax]]:
    setting = evidence.long_setting()
    if setting is None:
        return {}
    taxes = {
        (each.condition.arm, each.kind): each
        for each in evidence.analysis.kinds
        if each.condition == setting.on(each.condition.arm)
    }
    panels = {kind: [taxes[arm, kind] for arm in evidence.arms if (arm, kind) in taxes] for kind in ActionKind}
    return {kind: rows for kind, rows in panels.items() if rows}


def _most_rows(panels: dict[ActionKind, list[KindTax]]) -> int:
    return max(map(len, panels.values()))


def _setting(shown: list[KindTax]) -> str:
    condition = shown[0].condition
    return f"{words.name(condition.workload)}, {formatting.count(condition.length, 'action')}"


def _caveats(shown: list[KindTax]) -> tuple[Caveat, ...]:
    return tuple(dict.fromkeys(caveat for each in shown for caveat in (*each.tax.caveats, *each.caveats)))
