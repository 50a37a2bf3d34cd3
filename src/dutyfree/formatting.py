"""Sizes, durations, counts, tables and untrusted text, formatted for people."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

_SIZES = ("KiB", "MiB", "GiB", "TiB")
_SPANS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_MOST_OF_A_UNIT = 2
"""An age is given in the largest unit of which it has at least this many."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)
SHORT_DIGEST = 12
_QUOTED_CHARACTERS = 200


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
    text = "now"
    for unit, unit_s in _SPANS_S.items():
        if seconds >= _MOST_OF_A_UNIT * unit_s:
            text = f"{seconds // unit_s:.0f} {unit} ago"
    return text


def count(number: int, what: str) -> str:
    """Such as `1 layer` or `2,000 layers`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, and commas between thousands: `0.0182`, `12.3`, `6,495`."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    # Rounding up can add a digit: 9.996 is 10.0, not 10.00.
    return text if sum(map(str.isdigit, text.lstrip("-0."))) <= digits or not places else f"{value:,.{places - 1}f}"


def short_digest(digest: str) -> str:
    """Enough of a digest to find it again."""
    return digest.removeprefix("sha256:")[:SHORT_DIGEST]


def table(rows: Sequence[Sequence[str]], numbers: frozenset[int] = frozenset()) -> list[str]:
    """Lines with the columns aligned; those in `numbers` to the right."""
    widths = [max(display_width(row[column]) for row in rows) for column in range(len(rows[0]))]

    def cell(column: int, text: str) -> str:
        gap = " " * (widths[column] - display_width(text))
        return gap + text if column in numbers else text + gap

    return ["  ".join(cell(column, text) for column, text in enumerate(row)).rstrip() for row in rows]


def plain(text: str) -> str:
    """Untrusted text without escape sequences and control characters; newlines and tabs stay."""
    return "".join(each for each in _ESCAPE.sub("", text) if each.isprintable() or each in "\n\t")


def one_line(text: str) -> str:
    """The same in a single line."""
    return " ".join(plain(text).split())


def last_lines(text: str, most: int) -> list[str]:
    """The end of a log, one state of each line that was redrawn."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    return [plain(line).expandtabs() for line in lines[-most:]] if text.strip() else []


def quoted(name: bytes) -> str:
    """A file's name for a message: printable, and at most about 200 characters, whatever the name holds."""
    text = repr(name[: 4 * _QUOTED_CHARACTERS].decode("utf-8", "backslashreplace"))
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}...'"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint, `did you mean --memory? `; empty if nothing known is like the word."""
    from difflib import get_close_matches  # only mistakes need it

    found = get_close_matches(word, list(known), n=1)
    return f"did you mean {found[0]}? " if found else ""


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
