"""Reads results, strictly: a damaged or hostile file is refused, with its name and line."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dutyfree import tables
from dutyfree.codec import BILL
from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Study
from dutyfree.measure.results import layout
from dutyfree.measure.results.compact import read_compact
from dutyfree.measure.results.reading import JournalReading
from dutyfree.measure.results.records import Results
from dutyfree.measure.results.study_json import study_from_json
from dutyfree.model import Bill
from dutyfree.tables import Table, read_json
from dutyfree.trace import read_journal

MAX_JSON_BYTES: Final = 16 * 1024 * 1024


def load_results(path: Path | str) -> Results:
    """The results in a directory. Trials that were running when the study was killed are left out.

    Raises InvalidRequest, which names the file and the line, if these are not results of this schema.
    """
    path = Path(path)
    study, facts = read_study(path)
    host = read_json(path / layout.HOST, MAX_JSON_BYTES)
    if is_compact(path):
        compact = read_compact(path / layout.COMPACT, frozenset(arm.name for arm in study.arms))
        planned, short = facts["planned"], compact.cut_short
        return Results(study, host, compact.arms, compact.trials, planned, short, compact.references, _read_bill(path))
    reading = JournalReading(frozenset(arm.name for arm in study.arms))
    for number, record in journal_records(path):
        reading.take(number, record)
    planned = facts["planned"]
    trials = reading.trials()
    unfinished = len(trials) < planned and reading.stopped is None
    return Results(
        study=study,
        host=host,
        arms=reading.arms,
        trials=trials,
        planned=planned,
        cut_short="the study is still running, or was killed" if unfinished else reading.stopped or "",
        references=reading.references,
        bill=_read_bill(path),
    )


def _read_bill(path: Path) -> Bill | None:
    file = path / layout.BILL
    if not file.exists():
        return None
    try:
        return BILL.decode(read_json(file, MAX_JSON_BYTES))
    except InvalidRequest as error:
        raise InvalidRequest(f"{file} is no bill: {error.message}", hint=error.hint) from error


def read_study(path: Path) -> tuple[Study, Mapping[str, Any]]:
    """The study of a results directory, and the facts beside it: `planned`, `workloads`. Raises as `load_results`."""
    file = path / layout.STUDY
    if not file.exists():
        raise InvalidRequest(f"{path} holds no results: there is no {layout.STUDY} in it")
    table = Table(read_json(file, MAX_JSON_BYTES), str(file))
    if table.content.get("format") != layout.FORMAT:
        raise InvalidRequest(f"{file} does not describe a study")
    if table.content.get("schema") != layout.SCHEMA:
        found = table.content.get("schema")
        raise InvalidRequest(f"{file} is of schema {found!r:.20}; this reads schema {layout.SCHEMA}")
    table.allow("format", "schema", "dutyfree", "begun_s", "planned", "workloads", "study")
    facts = {
        "planned": table.required("planned", tables.natural),
        "workloads": table.required("workloads", tables.options),
    }
    return study_from_json(table.required("study", tables.table), f"{file}, study"), facts


def is_compact(path: Path) -> bool:
    """Whether a results directory holds a compact copy, and no journal."""
    has_journal = any((path / name).exists() for name in (layout.JOURNAL, layout.PACKED_JOURNAL))
    return not has_journal and (path / layout.COMPACT).exists()


def journal_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of the journal, compressed or not, each with its line number. Raises as `load_results`."""
    plain, packed = path / layout.JOURNAL, path / layout.PACKED_JOURNAL
    if not plain.exists() and not packed.exists():
        reason = "it is a compact copy of results" if is_compact(path) else f"{layout.JOURNAL} is missing"
        raise InvalidRequest(f"{path} has no journal: {reason}")
    try:
        # The journal's header is its first line.
        yield from enumerate(read_journal(plain if plain.exists() else packed), start=2)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRequest(f"cannot read the journal in {path}: {error}") from error
