"""The report as Markdown, with the figures beside it. Text from results cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from dutyfree import __version__
from dutyfree.measure.report.compose import Report, Shown
from dutyfree.measure.report.tables import Cell, Mark, Table, by_letter

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
"""Characters that Markdown, or HTML within it, might read as markup."""


def markdown(report: Report, *, figure_files: bool = True) -> str:
    """The report as text; figures are files in `figures/`, or else links to where they are on the page."""
    lines = [
        f"# Rollout infrastructure tax: {plain(report.study)}",
        "",
        plain(report.lead),
        "",
        *(["## The bill", "", *(f"    {line}" for line in report.bill.splitlines()), ""] if report.bill else ()),
        "## What this says",
        "",
    ]
    lines += [f"- {plain(each.text)}{_marks(each.marks)}" for each in report.says]
    if report.study_caveats:
        lines += ["", f"For all numbers: {plain('; '.join(report.study_caveats))}.{_marks(report.study_marks)}"]
    lines += ["", *_table(report.glance)]
    lines += ["## The paper's figures, for this machine", ""]
    lines += _figures(report.paper_figures, figure_files)
    for table in report.paper_tables:
        lines += _table(table)
    lines += ["## What the paper did not measure", "", *_figures(report.more_figures, figure_files)]
    lines += ["## All numbers", ""]
    for table in report.number_tables:
        lines += _table(table)
    lines += ["## Caveats", ""]
    for note in report.footnotes:
        lines += [
            f"- ({note.letter}) {plain(note.code)}: {plain(text)}" + (f" ({times:,} numbers)" if times > 1 else "")
            for text, times in note.texts
        ]
    lines += ["", "## Conditions", ""]
    for table in report.condition_tables:
        lines += _table(table)
    lines += ["## Protocol", ""]
    lines += [f"- **{plain(rule.title)}.** {plain(rule.text)}" for rule in report.protocol]
    return "\n".join([*lines, "", f"Made by dutyfree {__version__}.", ""]).encode("utf-8", "replace").decode()


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", text)


def _figures(figures: Iterable[Shown], are_files: bool) -> Iterator[str]:
    for each in figures:
        yield f"### {plain(each.heading)}"
        yield ""
        if each.picture is None:
            yield f"Not in this study: {plain(each.reason)}."
        else:
            if are_files:
                yield f"![{plain(each.heading)}](figures/{each.name}.svg)"
            else:
                yield f"[The figure is on the page.](index.html#{each.name})"
            yield ""
            yield f"{plain(each.caption)}{_marks(each.marks)}"
            if each.paper:
                yield ""
                yield f"> {plain(each.paper)}"
        yield ""


def _table(table: Table) -> Iterator[str]:
    yield f"### {plain(table.title)}"
    yield ""
    for group in table.groups:
        if group.title:
            yield f"**{plain(group.title)}**"
            yield ""
        yield "| " + " | ".join(plain(column.title) for column in table.columns) + " |"
        yield "|" + "|".join("---:" if column.is_number else "---" for column in table.columns) + "|"
        for row in group.rows:
            yield "| " + " | ".join(map(_cell, row)) + " |"
        yield ""
    if table.note:
        yield plain(table.note)
        yield ""


def _cell(cell: Cell) -> str:
    return plain(cell.whole) + _marks(cell.marks)


def _marks(marks: tuple[Mark, ...]) -> str:
    letters = ",".join(by_letter(marks))
    return f" ({letters})" if letters else ""
