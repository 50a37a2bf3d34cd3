"""The kinds of plots in figures: rows of dots with intervals, stacked bars, lines with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from dutyfree.measure.report import words
from dutyfree.measure.report.picture import new_figure
from dutyfree.measure.report.style import INK, MUTED, PAPER, WIDTH_IN, Look
from dutyfree.measure.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_ABOVE: Final = 10.0
"""If the largest value is more than this many times the smallest, the axis is logarithmic."""
NAME_LENGTH: Final = 22
"""Longer names are cut in figures; tables have them whole."""
HOLLOW: Final = "A hollow mark has a caveat."
_LABEL_CHARACTERS: Final = 96
"""About this many characters fit into one row of a legend."""


def label(text: str) -> str:
    """A name in a figure. matplotlib hides names with a leading underscore from the legend; a space prevents that."""
    short = words.name(text, NAME_LENGTH)
    return f"\u00a0{short}" if short.startswith("_") else short


def panel_grid(count: int, columns: int, row_in: float, rest_in: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in `columns` columns. A row is `row_in` high, everything else `rest_in`."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = new_figure(rest_in + rows * row_in, WIDTH_IN)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


@dataclass(frozen=True)
class Row:
    """One dot with its interval."""

    label: str
    estimate: Estimate | None
    look: Look
    doubtful: bool = False
    note: str = ""
    """The text beside the dot instead of the value; without an estimate, the reason."""


def value_axis(
    axes: Axes,
    which: Literal["x", "y"],
    values: Iterable[float],
    *,
    log: bool | None = None,
    room: float = 0.0,
    tick_text: Callable[[float], str] = words.tick,
) -> None:
    """Scale an axis for these values: logarithmic if they spread far, else from zero. `tick_text` formats the ticks.

    `room` is the space beyond the largest value, as a share of the axis.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    shown = [value for value in values if value > 0 and math.isfinite(value)]
    least, most = (min(shown), max(shown)) if shown else (1.0, 10.0)
    axis: Any = axes.xaxis if which == "x" else axes.yaxis
    if most / least > LOG_ABOVE if log is None else log:
        low, high = least / 1.5, most * 1.5 * (most / least) ** room
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
        steps, most_ticks = _tick_steps(axes, which, math.log10(high / low))
        axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=most_ticks))
    else:
        axes.set(**{f"{which}scale": "linear", f"{which}lim": (0, most * (1.12 + room))})
        axis.set_major_locator(MaxNLocator(nbins=4 if which == "x" else 5))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.grid(True, which="major")


def _tick_steps(axes: Axes, which: Literal["x", "y"], decades: float) -> tuple[tuple[float, ...], int]:
    """Which multiples of a power of ten have a tick, and the most ticks for which there is space."""
    grid = axes.get_subplotspec()
    columns = grid.get_gridspec().ncols if grid is not None and which == "x" else 1
    few, some, most = {1: (3.2, 1.5, 9), 2: (2.0, 1.0, 7)}.get(columns, (1.9, 0.8, 3))
    return (1.0,) if decades > few else (1.0, 3.0) if decades > some else (1.0, 2.0, 5.0), most


def dot_rows(
    axes: Axes,
    rows: Sequence[Row],
    *,
    values: Iterable[float],
    named: bool = True,
    room: float = 0.38,
    log: bool | None = None,
    tick_text: Callable[[float], str] = words.tick,
) -> None:
    """One row per dot, the first on top, the value beside it; the axis includes all `values`.

    `room` is the space for the text to the right of the last dot, as a share of the axis.
    """
    value_axis(axes, "x", values, log=log, room=room, tick_text=tick_text)
    for position, row in enumerate(rows):
        if row.estimate is None:
            axes.annotate(
                row.note or "no value",
                (0.02, position),
                xycoords=axes.get_yaxis_transform(),
                va="center",
                color=MUTED,
                fontsize=8,
                style="italic",
            )
            continue
        _interval(axes, row.estimate, position, row.look, horizontal=True)
        _dot(axes, row.estimate.value, position, row.look, hollow=row.doubtful)
        ends = [row.estimate.value, *(high for high in [row.estimate.high] if high is not None and math.isfinite(high))]
        axes.annotate(
            row.note or words.value_of(row.estimate),
            (max(ends), position),
            xytext=(7, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=8,
            color=INK,
        )
    _name_rows(axes, [row.label if named else "" for row in rows])


def stacked_rows(
    axes: Axes,
    labels: Sequence[str],
    parts: Sequence[Mapping[Any, float]],
    colours: Mapping[Any, str],
    *,
    totals: Sequence[str] = (),
) -> None:
    """One bar per row; its parts one after the other in the order of `colours`."""
    for position, row in enumerate(parts):
        left = 0.0
        for part, colour in colours.items():
            if width := row.get(part, 0.0):
                axes.barh(position, width, left=left, height=0.68, color=colour, edgecolor=PAPER, linewidth=0.5)
                left += width
        if totals:
            axes.annotate(
                totals[position],
                (left, position),
                xytext=(5, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=8,
                color=INK,
            )
    _name_rows(axes, labels)
    axes.grid(True, axis="x")


def interval_line(
    axes: Axes, points: Sequence[tuple[float, Estimate]], look: Look, *, doubtful: Sequence[bool] = (), dash: str = ""
) -> None:
    """A line through the values, each with its interval."""
    axes.plot(
        [at for at, _ in points], [each.value for _, each in points], color=look.colour, linestyle=dash or look.dash
    )
    for (at, each), hollow in zip(points, doubtful or [False] * len(points), strict=True):
        _interval(axes, each, at, look, horizontal=False)
        _dot(axes, at, each.value, look, hollow=hollow)


def _dot(axes: Axes, x: float, y: float, look: Look, *, hollow: bool) -> None:
    axes.plot(
        [x],
        [y],
        marker=look.marker,
        color=look.colour,
        markerfacecolor=PAPER if hollow else look.colour,
        markeredgewidth=1.3,
        linestyle="none",
        zorder=3,
    )


def _interval(axes: Axes, estimate: Estimate, at: float, look: Look, *, horizontal: bool) -> None:
    """A line from bound to bound; nothing on the side of an unknown bound."""
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None or math.isinf(estimate.high) else estimate.high
    draw = axes.hlines if horizontal else axes.vlines
    draw([at], [low], [high], color=look.colour, linewidth=3.2, alpha=0.38)


def _name_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def arms_legend(figure: Figure, looks: Mapping[str, Look], extra: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
    """The legend below the figure: the arms, then the `extra` lines."""
    from matplotlib.lines import Line2D

    drawn: list[tuple[Any, str]] = [
        (Line2D([], [], color=each.colour, marker=each.marker, linestyle=each.dash), label(arm))
        for arm, each in looks.items()
    ]
    drawn += [(Line2D([], [], **how), text) for text, how in extra]
    _legend(figure, drawn)


def parts_legend(figure: Figure, colours: Mapping[Any, str]) -> None:
    """The legend below the figure: the meaning of each colour."""
    from matplotlib.patches import Patch

    if colours:
        _legend(figure, [(Patch(facecolor=colour), str(part)) for part, colour in colours.items()])


def _legend(figure: Figure, drawn: Sequence[tuple[Any, str]]) -> None:
    longest = max(len(text) for _, text in drawn) + 7
    columns = max(1, min(len(drawn), _LABEL_CHARACTERS // longest))
    rows = math.ceil(len(drawn) / columns)
    figure.legend(
        [handle for handle, _ in drawn],
        [text for _, text in drawn],
        loc="outside lower center",
        ncols=math.ceil(len(drawn) / rows),
    )
