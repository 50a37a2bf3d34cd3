"""Results as Parquet, for other tools: three tables, joined by the trial's number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dutyfree.measure.results.directory import journal_records, load_results
from dutyfree.measure.results.records import Results, Trial
from dutyfree.model import Phase

TRIALS: Final = "trials.parquet"
ACTIONS: Final = "actions.parquet"
SPANS: Final = "spans.parquet"
_ROWS_AT_ONCE: Final = 50_000

_TRIAL: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("trial", "sequence", "block")),
        *((name, pa.string()) for name in ("arm", "workload")),
        ("length", pa.int64()),
        ("stage", pa.string()),
        ("concurrency", pa.int64()),
        ("outcome", pa.string()),
        *((name, pa.int64()) for name in ("wall_ns", "first_observation_ns", "late_ns")),
        *((f"{phase}_ns", pa.int64()) for phase in Phase),
        ("failed_phase", pa.string()),
        ("cause", pa.string()),
    ]
)
_ACTION: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("trial", "position")),
        *((name, pa.string()) for name in ("name", "kind")),
        *((name, pa.int64()) for name in ("start_ns", "dispatch_ns", "execute_ns", "observe_ns")),
    ]
)
_SPAN: Final = pa.schema(
    [
        ("trial", pa.int64()),
        *((name, pa.string()) for name in ("phase", "name")),
        *((name, pa.int64()) for name in ("start_ns", "end_ns")),
    ]
)


def export_parquet(path: Path, results: Results | None = None) -> tuple[Path, ...]:
    """Write the three tables beside the journal; tables of an earlier export are replaced. Raises as `load_results`."""
    results = results or load_results(path)
    begun = _last_begun(path, {trial.number for trial in results.trials})
    return (
        _write(path / TRIALS, _TRIAL, (_trial_row(trial) for trial in results.trials)),
        _write(path / ACTIONS, _ACTION, _action_rows(path, begun)),
        _write(path / SPANS, _SPAN, _records(path, "span", begun)),
    )


def _last_begun(path: Path, finished: set[int]) -> dict[int, int]:
    """The line on which each finished trial last began; earlier records are of a run that was killed."""
    return {
        record["trial"]: line
        for line, record in journal_records(path)
        if record["kind"] == "trial" and record["trial"] in finished
    }


def _records(path: Path, kind: str, begun: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    for line, record in journal_records(path):
        if record["kind"] == kind and line > begun.get(record["trial"], line):
            yield record


def _write(path: Path, schema: pa.Schema, rows: Iterator[dict[str, Any]]) -> Path:
    part = path.with_name(f".{path.name}.dutyfree-part")
    with pq.ParquetWriter(part, schema, compression="zstd") as writer:
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            known = [{name: row[name] for name in schema.names} for row in batch]
            writer.write_table(pa.Table.from_pylist(known, schema=schema))
    return part.replace(path)


def _trial_row(trial: Trial) -> dict[str, Any]:
    condition = trial.condition
    return {
        "trial": trial.number,
        "sequence": trial.sequence,
        "block": trial.block,
        "arm": condition.arm,
        "workload": condition.workload,
        "length": condition.length,
        "stage": str(condition.warmth),
        "concurrency": condition.concurrency,
        "outcome": str(trial.outcome),
        "wall_ns": trial.wall_ns,
        "first_observation_ns": trial.first_observation_ns,
        "late_ns": trial.late_ns,
        **{f"{phase}_ns": trial.by_phase.get(phase, 0) for phase in Phase},
        "failed_phase": None if trial.failed_phase is None else str(trial.failed_phase),
        "cause": trial.cause,
    }


def _action_rows(path: Path, begun: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    positions: Counter[int] = Counter()
    for record in _records(path, "action", begun):
        trial = record["trial"]
        dispatch_ns, execute_ns, observe_ns = record["parts_ns"]
        yield {
            "trial": trial,
            "position": positions[trial],
            "name": record["name"],
            "kind": record["of"],
            "start_ns": record["start_ns"],
            "dispatch_ns": dispatch_ns,
            "execute_ns": execute_ns,
            "observe_ns": observe_ns,
        }
        positions[trial] += 1
