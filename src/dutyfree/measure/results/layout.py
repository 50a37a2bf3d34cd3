"""The files of a results directory and their records, as described in docs/reference/results.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dutyfree.measure.design.plan import PlannedTrial
from dutyfree.measure.results.records import ActionRecord, Trial
from dutyfree.model import Phase

SCHEMA: Final = 1
FORMAT: Final = "dutyfree-study"
STUDY: Final = "study.json"
HOST: Final = "host.json"
JOURNAL: Final = "journal.jsonl"
PACKED_JOURNAL: Final = "journal.jsonl.gz"
BILL: Final = "bill.json"
"""The bill of a live run; a study has none."""
COMPACT: Final = "trials.xz"
"""Instead of the journal, in a compact copy of results."""
MAX_CAUSE: Final = 2000
"""The longest cause that is recorded, so that an error message of any length fits into a record."""


def begin_record(
    planned: PlannedTrial, *, sequence: int, late_ns: int, at_s: float, evicted: Mapping[str, Any]
) -> dict[str, Any]:
    """A trial begins."""
    condition = planned.condition
    record: dict[str, Any] = {
        "kind": "trial",
        "trial": planned.number,
        "sequence": sequence,
        "block": planned.block,
        "arm": condition.arm,
        "workload": condition.workload,
        "length": condition.length,
        "stage": str(condition.warmth),
        "concurrency": condition.concurrency,
        "seed": planned.seed,
        "late_ns": late_ns,
        "at_s": round(at_s, 3),
    }
    return record | {"evicted": dict(evicted)} if evicted else record


def action_record(trial: int, start_ns: int, action: ActionRecord) -> dict[str, Any]:
    """An action returned its observation; `start_ns` counts from the trial's start."""
    parts_ns = (action.dispatch_ns, action.execute_ns, action.observe_ns)
    return {
        "kind": "action",
        "trial": trial,
        "name": action.name,
        "of": action.kind,
        "start_ns": start_ns,
        "parts_ns": parts_ns,
    }


def span_record(trial: int, phase: Phase, name: str, start_ns: int, end_ns: int) -> dict[str, Any]:
    """A span of a sandbox's life outside of actions; both ends count from the trial's start."""
    return {"kind": "span", "trial": trial, "phase": phase, "name": name, "start_ns": start_ns, "end_ns": end_ns}


def reference_record(block: int, spawn_ns: int) -> dict[str, Any]:
    """How long a bare process took just before a block began."""
    return {"kind": "reference", "block": block, "spawn_ns": spawn_ns}


def end_record(trial: Trial, sandbox: str) -> dict[str, Any]:
    """A trial ended. A trial without this record does not count."""
    return {
        "kind": "end",
        "trial": trial.number,
        "outcome": str(trial.outcome),
        "wall_ns": trial.wall_ns,
        "first_observation_ns": trial.first_observation_ns,
        "by_phase": {str(phase): spent for phase, spent in trial.by_phase.items() if spent},
        "steps": dict(trial.steps),
        "failed_phase": None if trial.failed_phase is None else str(trial.failed_phase),
        "cause": trial.cause[:MAX_CAUSE],
        "sandbox": sandbox,
    }
