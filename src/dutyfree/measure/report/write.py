"""Writes a report: the page, its figures, the analysis as JSON, and optionally Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.measure.report.compose import Report, compose
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.figures import catalogue
from dutyfree.measure.report.markdown import markdown as as_markdown
from dutyfree.measure.report.page import page as as_page
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats.analysis import Analysis
from dutyfree.publish import publish


@dataclass(frozen=True)
class Written:
    """The written files, and the report."""

    page: Path
    markdown: Path | None
    analysis: Path | None
    figures: tuple[Path, ...]
    report: Report


def write_report(
    results: Results, analysis: Analysis, directory: Path, *, markdown: bool = False, small: bool = False
) -> Written:
    """Make the report and write it to `directory`, which is made if need be.

    A small report is the page (and the Markdown): no figures as files, which the page holds anyway, and no JSON.
    An earlier report there is replaced, each file atomically, the page last. Raises InvalidRequest for a study
    without trials, or a directory that cannot be written to.
    """
    if not results.trials and results.bill is None:
        raise InvalidRequest(
            f"study {results.study.name!r} has no trial yet, so that there is nothing to report",
            hint="run it first: dutyfree bench",
        )
    try:
        # Before the work, which takes seconds and would be lost.
        (directory if small else directory / "figures").mkdir(parents=True, exist_ok=True)
        return _written(compose(Evidence(results, analysis)), analysis, directory, markdown=markdown, small=small)
    except OSError as error:
        raise InvalidRequest(f"the report cannot be written to {directory}: {error.strerror or error}") from error


def _written(report: Report, analysis: Analysis, directory: Path, *, markdown: bool, small: bool) -> Written:
    figures = directory / "figures"
    for name in ("report.md", "analysis.json"):
        (directory / name).unlink(missing_ok=True)
    for entry in (*catalogue.OF_THE_PAPER, *catalogue.MORE):
        for suffix in (".svg", ".png"):
            (figures / f"{entry.name}{suffix}").unlink(missing_ok=True)
    paths: list[Path] = []
    found = None
    if not small:
        paths += [
            publish(figures / f"{shown.name}{suffix}", data)
            for shown in report.figures
            if shown.picture is not None
            for suffix, data in ((".svg", shown.picture.svg), (".png", shown.picture.png))
        ]
        found = publish(directory / "analysis.json", json.dumps(analysis.to_json(), indent=1).encode())
    written = as_markdown(report, figure_files=not small)
    text = publish(directory / "report.md", written.encode()) if markdown else None
    page = publish(directory / "index.html", as_page(report).encode())
    return Written(page, text, found, tuple(paths), report)
