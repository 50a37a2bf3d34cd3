"""Tables as values: the text of each cell, and the marks of its caveats. The formats decide how they look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from dutyfree.measure.report import words
from dutyfree.measure.stats.estimate import Caveat, Estimate


@dataclass(frozen=True)
class Mark:
    """A letter beside a number, and the reason to doubt it."""

    letter: str
    caveat: Caveat


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    marks: tuple[Mark, ...] = ()
    bounds: str = ""
    """The interval of a number, to be shown behind it in brackets."""

    @property
    def whole(self) -> str:
        """The text with its bounds."""
        return f"{self.text} ({self.bounds})" if self.bounds else self.text


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers are aligned right."""

    title: str
    is_number: bool = False


@dataclass(frozen=True)
class Group:
    """Rows that belong together; the first cell of each names it."""

    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Named columns and groups of rows."""

    key: str
    title: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    note: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the table has no rows."""
        return not any(group.rows for group in self.groups)


@dataclass
class Footnotes:
    """Gives every kind of caveat a letter at its first use, and counts how often each text is used."""

    letters: dict[str, str] = field(default_factory=dict)
    texts: dict[str, dict[str, int]] = field(default_factory=dict)

    def mark(self, caveats: Iterable[Caveat]) -> tuple[Mark, ...]:
        """The marks of a number with these caveats."""
        return tuple(Mark(self._letter(each), each) for each in caveats)

    def cell(self, text: str, *caveats: Caveat) -> Cell:
        """A cell with its marks."""
        return Cell(text, self.mark(caveats))

    def estimate(self, estimate: Estimate, *caveats: Caveat) -> Cell:
        """A number with its interval, and the marks of these caveats and its own."""
        return Cell(words.value_of(estimate), self.mark((*estimate.caveats, *caveats)), words.interval_of(estimate))

    def _letter(self, caveat: Caveat) -> str:
        texts = self.texts.setdefault(caveat.code, {})
        texts[caveat.text] = texts.get(caveat.text, 0) + 1
        return self.letters.setdefault(caveat.code, _nth_letter(len(self.letters)))


def _nth_letter(position: int) -> str:
    """a to z, then aa, ab ..."""
    turn, place = divmod(position, len(ascii_lowercase))
    return (ascii_lowercase[turn - 1] if turn else "") + ascii_lowercase[place]


def by_letter(marks: Iterable[Mark]) -> dict[str, str]:
    """Each letter once, in order, with its texts."""
    texts: dict[str, dict[str, None]] = {}
    for mark in sorted(marks, key=lambda mark: (len(mark.letter), mark.letter)):
        texts.setdefault(mark.letter, {})[mark.caveat.text] = None
    return {letter: "; ".join(own) for letter, own in texts.items()}


def cells(texts: Sequence[str]) -> tuple[Cell, ...]:
    """Cells without marks."""
    return tuple(map(Cell, texts))
