"""The picture of `substrates.py`: a bar for each substrate, as long as the time to its first observation, by steps."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 960, 220, 90, 74, 22, 12
COLOURS = (
    *("#2f5d8a", "#5b8fbe", "#9cc3e6", "#c9822b", "#e8b56a", "#7a9a4b", "#b7ce8d", "#8a5a83", "#c7a5c2"),
    *("#3f7f7a", "#8fc1bd", "#a33b3b", "#dd9a9a", "#6b6b6b", "#bdbdbd", "#c6b23c"),
)
LEAST_MS = 1.0


def draw(rows: list[dict[str, Any]]) -> str:
    """An SVG. The length is logarithmic; within a bar each step has its share of the bar's own length."""
    rows = sorted(rows, key=lambda row: row["first_ms"])
    names = list(dict.fromkeys(name for row in rows for name in _steps(row)))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    most = 10 ** math.ceil(math.log10(max(row["first_ms"] for row in rows)))
    legend_lines = math.ceil(len(names) / 4)
    bottom = TOP + len(rows) * (BAR + GAP)
    height = bottom + 34 + legend_lines * 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" fill="#222" role="img" aria-label="Time to the first observation by substrate">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        '<text x="16" y="26" font-size="17" font-weight="bold">From nothing to the first observation</text>',
        '<text x="16" y="46" fill="#555">median, ms; the axis is logarithmic, '
        "the colours of a bar are shares of its time</text>",
        *_axis(most, bottom),
    ]
    for number, row in enumerate(rows):
        parts += _bar(row, TOP + number * (BAR + GAP), most, colours)
    for number, name in enumerate(names):
        x, y = 16 + (number % 4) * 232, bottom + 38 + (number // 4) * 20
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _steps(row: dict[str, Any]) -> list[str]:
    return [name for name, share in row["shares"].items() if share >= 0.01]


def _x(value_ms: float, most: float) -> float:
    share = math.log10(max(value_ms, LEAST_MS) / LEAST_MS) / math.log10(most / LEAST_MS)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _axis(most: float, bottom: int) -> list[str]:
    parts = []
    tick = LEAST_MS
    while tick <= most:
        x = _x(tick, most)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        label = f"{tick:g} ms" if tick < 1000 else f"{tick / 1000:g} s"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{label}</text>')
        tick *= 10
    return parts


def _bar(row: dict[str, Any], y: int, most: float, colours: dict[str, str]) -> list[str]:
    end = _x(row["first_ms"], most)
    note = f" ({row['note']})" if row["note"] else ""
    parts = [f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(row["contender"] + note)}</text>']
    x, total = float(LEFT), sum(row["shares"][name] for name in _steps(row)) or 1.0
    for name in _steps(row):
        width = (end - LEFT) * row["shares"][name] / total
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colours[name]}"/>')
        x += width
    label = f"{row['first_ms']:.1f} ms" if row["first_ms"] < 1000 else f"{row['first_ms'] / 1000:.1f} s"
    return [*parts, f'<text x="{end + 6:.1f}" y="{y + 16}">{label}</text>']
