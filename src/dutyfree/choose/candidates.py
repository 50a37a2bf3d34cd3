"""Reads candidates from a file that `dutyfree advise --json` has printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dutyfree.choose.decision import Candidate
from dutyfree.errors import InvalidRequest
from dutyfree.model import Isolation
from dutyfree.tables import Table, environment, flag, natural, number, read_json, table, tables, text

MAX_BYTES: Final = 4 * 1024 * 1024
_WALLS: Final = {each.label: each for each in Isolation}


def read_candidates(path: Path | str) -> tuple[Candidate, ...]:
    """The candidates in a file of advice. Raises InvalidRequest, which names the place, for any other content."""
    advice = read_json(Path(path), MAX_BYTES)
    if advice.get("kind") != "advice":
        raise InvalidRequest(f"{path} holds no advice", hint=f"dutyfree advise RESULTS --json > {path}")
    found = Table(advice, str(path)).required("evidence", tables)
    return tuple(
        _candidate(Table(Table(each, f"{path}, evidence {index}").required("candidate", table), f"{path}, {index}"))
        for index, each in enumerate(found)
    )


def _candidate(candidate: Table) -> Candidate:
    candidate.allow(*Candidate.__slots__)
    return candidate.checked(
        None,
        lambda: Candidate(
            name=candidate.required("name", text),
            substrate=candidate.required("substrate", text),
            isolation=candidate.required("isolation", _wall),
            acquire_s=candidate.required("acquire_s", number),
            action_overhead_s=candidate.required("action_overhead_s", number),
            slowdown=candidate.required("slowdown", number),
            memory_bytes=candidate.required("memory_bytes", natural),
            failure_rate=candidate.required("failure_rate", number),
            emulated=candidate.required("emulated", flag),
            options=candidate.required("options", environment),
        ),
    )


def _wall(value: Any) -> Isolation:
    if (label := text(value)) not in _WALLS:
        raise InvalidRequest(f"there is no isolation {label!r:.80}", hint=f"there are: {', '.join(_WALLS)}")
    return _WALLS[label]
