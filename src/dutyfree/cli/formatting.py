"""Sizes, times and tables, as people read and write them."""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections.abc import Sequence

_SIZES = ("KiB", "MiB", "GiB", "TiB")
_SPANS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOST_OF_A_UNIT = 2
"""An age is told in the largest unit of which it has at least this many."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)
SHORT_DIGEST = 12


def size(count_bytes: float) -> str:
    """Bytes, such as `512 B` or `1.5 GiB`."""
    if count_bytes < 1024:
        return f"{count_bytes:.0f} B"
    for unit in _SIZES:
        count_bytes /= 1024
        if count_bytes < 999.95 or unit == _SIZES[-1]:
            break
    return f"{count_bytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """How long something took, such as `0.4 s` or `2 min 5 s`."""
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def age(seconds: float) -> str:
    """How long ago something was, such as `5 min ago`; clocks that were set back make nothing negative."""
    told = "now"
    for unit, unit_s in _SPANS_S.items():
        if seconds >= _MOST_OF_A_UNIT * unit_s:
            told = f"{seconds // unit_s:.0f} {unit} ago"
    return told


def count(number: int, what: str) -> str:
    """Such as `1 layer` or `2 layers`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def short_digest(digest: str) -> str:
    """Enough of a digest to find it again."""
    return digest.removeprefix("sha256:")[:SHORT_DIGEST]


def seconds_of(text: str) -> float:
    """Seconds, from 90s, 30m, 12h, 7d or 2w: the type of an option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 12h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]


def table(rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()) -> list[str]:
    """Lines with the columns aligned; those in `numbers` to the right."""
    widths = [max(display_width(row[column]) for row in rows) for column in range(len(rows[0]))]

    def cell(column: int, text: str) -> str:
        gap = " " * (widths[column] - display_width(text))
        return gap + text if column in numbers else text + gap

    return ["  ".join(cell(column, text) for column, text in enumerate(row)).rstrip() for row in rows]


def plain(text: str) -> str:
    """Text of others without what would move a terminal's cursor, colour it or do worse. Lines and tabs stay."""
    return "".join(each for each in _ESCAPE.sub("", text) if each.isprintable() or each in "\n\t")


def one_line(text: str) -> str:
    """The same in a single line."""
    return " ".join(plain(text).split())


def last_lines(text: str, most: int) -> list[str]:
    """The end of a log, one state of each line that was redrawn."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    return [plain(line).expandtabs() for line in lines[-most:]] if text.strip() else []


def display_width(text: str) -> int:
    """The columns that a terminal gives to printable text."""
    return sum(_columns(each) for each in text)


def fitted(text: str, width: int) -> str:
    """The text, its end replaced by an ellipsis where it does not fit."""
    if display_width(text) <= width:
        return text
    kept, left = "", width - 1
    for each in text:
        left -= _columns(each)
        if left < 0:
            break
        kept += each
    return kept + "…" if width > 0 else ""


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
