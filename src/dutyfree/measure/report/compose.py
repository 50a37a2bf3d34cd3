"""A report as a value: the content of the page and of the Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dutyfree import formatting
from dutyfree.measure.report import findings, paper_tables, style, words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.figures import catalogue
from dutyfree.measure.report.picture import Absent, Picture, save
from dutyfree.measure.report.protocol import Rule, protocol
from dutyfree.measure.report.says import says
from dutyfree.measure.report.tables import Footnotes, Mark, Table


@dataclass(frozen=True)
class Said:
    """A sentence with its marks."""

    text: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Shown:
    """A figure with its texts; if there is no picture, `reason` says why."""

    name: str
    heading: str
    picture: Picture | None = None
    caption: str = ""
    alt: str = ""
    paper: str = ""
    reason: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def inline(self) -> str:
        """The drawing, for a page."""
        return self.picture.inline if self.picture else ""


@dataclass(frozen=True)
class Footnote:
    """One kind of caveat: each of its texts, with the number of estimates that have it."""

    letter: str
    code: str
    texts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Report:
    """All parts of a report, in their order."""

    study: str
    lead: str
    bill: str
    """The bill of a live run as lines of text; empty for a study."""
    says: tuple[Said, ...]
    study_caveats: tuple[str, ...]
    study_marks: tuple[Mark, ...]
    glance: Table
    paper_figures: tuple[Shown, ...]
    paper_tables: tuple[Table, ...]
    more_figures: tuple[Shown, ...]
    number_tables: tuple[Table, ...]
    condition_tables: tuple[Table, ...]
    protocol: tuple[Rule, ...]
    footnotes: tuple[Footnote, ...]

    @property
    def figures(self) -> tuple[Shown, ...]:
        """All figures."""
        return (*self.paper_figures, *self.more_figures)


def compose(evidence: Evidence) -> Report:
    """Make the report. Caveats get letters in the order of their first use in the report."""
    notes = Footnotes()
    analysis = evidence.analysis
    sentences = tuple(Said(each.text, notes.mark(each.caveats)) for each in says(evidence))
    study_marks = notes.mark(analysis.caveats)
    glance = findings.at_a_glance(evidence, notes)
    with style.applied():
        paper_figures = _shown(catalogue.OF_THE_PAPER, evidence, notes)
        # The paper's tables project a study; a live run has its bill.
        of_paper = paper_tables.tables(evidence, notes) if evidence.results.bill is None else ()
        more_figures = _shown(catalogue.MORE, evidence, notes)
    number_tables = [
        build(evidence, notes)
        for build in (
            findings.every_condition,
            findings.ratios,
            findings.crossovers,
            findings.failures,
            findings.soundness,
            findings.floor,
        )
    ]
    return Report(
        study=words.name(analysis.study),
        lead=_lead(evidence),
        bill="" if evidence.results.bill is None else formatting.plain(str(evidence.results.bill)),
        says=sentences,
        study_caveats=tuple(words.line(each.text) for each in analysis.caveats),
        study_marks=study_marks,
        glance=glance,
        paper_figures=paper_figures,
        paper_tables=of_paper,
        more_figures=more_figures,
        number_tables=tuple(each for each in number_tables if not each.is_empty),
        condition_tables=(findings.machine(evidence), findings.arms(evidence)),
        protocol=tuple(protocol(evidence)),
        footnotes=tuple(
            Footnote(letter, code, tuple((words.line(text), times) for text, times in notes.texts[code].items()))
            for code, letter in notes.letters.items()
        ),
    )


def _shown(entries: Sequence[catalogue.Entry], evidence: Evidence, notes: Footnotes) -> tuple[Shown, ...]:
    shown = []
    for entry in entries:
        number = entry.name.split("-")[1]
        drawn = entry.draw(evidence)
        heading = f"Figure {number}. {drawn.title}"
        if isinstance(drawn, Absent):
            shown.append(Shown(entry.name, heading, reason=drawn.reason))
        else:
            marks = notes.mark(drawn.caveats)
            picture = save(entry.name, drawn)
            shown.append(Shown(entry.name, heading, picture, drawn.caption, drawn.alt, drawn.paper, marks=marks))
    return tuple(shown)


def _lead(evidence: Evidence) -> str:
    """One line: how much was measured, and where."""
    host = evidence.results.host
    trials = f"{formatting.count(evidence.analysis.trials, 'trial')} on {formatting.count(len(evidence.arms), 'arm')}"
    if evidence.analysis.floor_arm:
        trials += " and the null substrate"
    facts = (("cpu", "{}"), ("cores", "{} cores"), ("kernel", "kernel {}"))
    return ", ".join([trials, *(how.format(words.name(str(host[key]), 60)) for key, how in facts if host.get(key))])
