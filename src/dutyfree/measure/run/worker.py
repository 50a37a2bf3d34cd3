"""Runs the trials of one arm for the study of another process: `python -m dutyfree.measure.run.worker`.

So two installations of Dutyfree can take part in one study: each arm's trials run, and are timed, in the installation
that they measure. One JSON object per line on standard input and output; every request has one answer:

::

    worker: {"protocol": 1, "dutyfree": "0.1", "python": "3.12.3", "location": "/opt/old/.../dutyfree"}
    study:  {"study": {...}}                    a study with one arm; the form of study.json
    worker: {"facts": {...}, "workloads": {"T0": "9f2c..."}}
    study:  {"trial": {...}, "mark": "..."}     a trial to run; the form of the journal's record "trial"
    worker: {"records": [{"kind": "action", ...}, ..., {"kind": "end", ...}], "unenforced": ["memory"]}
    worker: {"error": {...}}                    instead of an answer; then the worker ends

The end of the input ends the worker, also while a trial runs: its sandbox is then destroyed, and no answer is sent.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from dutyfree import __version__, tables
from dutyfree.codec import ERROR
from dutyfree.codec.document import dumps, loads
from dutyfree.errors import DutyfreeError, InvalidRequest
from dutyfree.measure.design.file import stage
from dutyfree.measure.design.plan import PlannedTrial
from dutyfree.measure.design.study import Condition, Study
from dutyfree.measure.results import layout
from dutyfree.measure.results.records import ActionRecord, Trial
from dutyfree.measure.results.study_json import study_from_json
from dutyfree.measure.run.arms import OpenArm, open_arm
from dutyfree.measure.run.cold import SeenSandboxes
from dutyfree.measure.run.gathering import gather
from dutyfree.measure.run.trial import Attempt, Job
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.workload import Workload
from dutyfree.model import Phase
from dutyfree.tables import Table

PROTOCOL: Final = 1
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""The longest line: a trial of the longest trajectory takes about a tenth of it."""

Answer = Callable[[Mapping[str, Any]], None]


class TrialRecords:
    """A log that keeps the records of a trial, to be sent when the trial has ended."""

    def __init__(self) -> None:
        self._actions: list[tuple[int, int, ActionRecord]] = []
        self._others: list[dict[str, Any]] = []

    def begin(self, planned: PlannedTrial, *, sequence: int, late_ns: int, evicted: Mapping[str, Any]) -> None:
        """Not kept: the study that asked for the trial records its beginning."""

    def action(self, trial: int, start_ns: int, action: ActionRecord) -> None:
        """Kept as it is: to format it here would take time between two actions."""
        self._actions.append((trial, start_ns, action))

    def span(self, trial: int, phase: Phase, name: str, start_ns: int, end_ns: int) -> None:
        """Kept."""
        self._others.append(layout.span_record(trial, phase, name, start_ns, end_ns))

    def end(self, trial: Trial, *, sandbox: str, sync: bool = True) -> None:
        """Kept."""
        self._others.append(layout.end_record(trial, sandbox))

    def records(self) -> list[dict[str, Any]]:
        """Everything, in the form of the journal."""
        return [*(layout.action_record(*each) for each in self._actions), *self._others]


async def serve(requests: asyncio.StreamReader, answer: Answer) -> None:
    """Answer requests until their end. Raises DutyfreeError for a request that cannot be met."""
    answer(
        {
            "protocol": PROTOCOL,
            "dutyfree": __version__,
            "python": platform.python_version(),
            "location": str(Path(tables.__file__).parent),
        }
    )
    line = await requests.readline()
    if not line:
        return
    study = study_from_json(Table(loads(line), "the request").required("study", tables.table), "the study")
    gathered = await asyncio.to_thread(gather, study)
    arm = await open_arm(study.arms[0])
    try:
        answer({"facts": arm.facts, "workloads": gathered.fingerprints})
        # As in the study's own process: objects that exist by now will stay.
        gc.collect()
        gc.freeze()
        await _trials(requests, answer, study, arm, gathered.workloads)
    finally:
        await arm.close()


async def _trials(
    requests: asyncio.StreamReader, answer: Answer, study: Study, arm: OpenArm, workloads: Mapping[str, Workload]
) -> None:
    seen = SeenSandboxes()
    line = await requests.readline()
    while line:
        table = Table(loads(line), "the request")
        asked = table.required("trial", tables.table)
        planned, sequence = planned_from(Table(asked, "the trial"), arm.arm.name)
        workload = workloads[planned.condition.workload]
        trajectory = draw(workload, planned.condition.length, planned.seed)
        job = Job(planned, study, arm, workload, trajectory, table.required("mark", tables.nonempty_text))
        running = asyncio.ensure_future(_trial(job, sequence, seen))
        following = asyncio.ensure_future(requests.readline())
        await asyncio.wait({running, following}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():  # the study has gone, or does not keep to the protocol
            running.cancel()
            await asyncio.wait({running})
            return
        answer(running.result())
        line = await following


async def _trial(job: Job, sequence: int, seen: SeenSandboxes) -> dict[str, Any]:
    log = TrialRecords()
    attempt = Attempt(job, log, seen)
    try:
        await attempt.prepare()
        log.end(await attempt.measure(sequence), sandbox=attempt.sandbox_id)
    finally:
        await attempt.discard()
    return {"records": log.records(), "unenforced": attempt.unenforced}


def planned_from(table: Table, arm: str) -> tuple[PlannedTrial, int]:
    """The trial of a record "trial", and its place in the sequence. Raises InvalidRequest."""
    condition = Condition(
        arm=arm,
        workload=table.required("workload", tables.nonempty_text),
        length=table.required("length", tables.positive_whole),
        warmth=table.required("stage", stage),
    )
    number, block, seed, sequence = (
        table.required(name, tables.natural) for name in ("trial", "block", "seed", "sequence")
    )
    return PlannedTrial(number, block, condition, seed), sequence


async def _main(answers: BinaryIO) -> None:
    def answer(document: Mapping[str, Any]) -> None:
        answers.write(dumps(document).encode() + b"\n")
        answers.flush()

    requests = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin.buffer)
    try:
        await serve(requests, answer)
    except DutyfreeError as error:
        answer({"error": ERROR.encode(error)})
    except (ValueError, LookupError) as error:
        answer({"error": ERROR.encode(InvalidRequest(f"the request cannot be read: {error}"))})


def main() -> None:
    """Serve the process that started this one."""
    # Whatever else prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        asyncio.run(_main(answers))
    except BrokenPipeError:  # the study ended first
        return


if __name__ == "__main__":
    main()
