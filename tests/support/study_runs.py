"""Runs small studies for tests, on substrates that tests give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dutyfree.contract import Substrate
from dutyfree.measure.design.file import with_null
from dutyfree.measure.design.study import Arm, Grid, Study
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.results.records import Results
from dutyfree.measure.results.writer import ResultsWriter
from dutyfree.measure.run.arms import load_substrate
from dutyfree.measure.run.gathering import fingerprint
from dutyfree.measure.run.study_runner import Progress, StudyRunner
from dutyfree.measure.workloads.workload import ActionKind, Expectation, ScriptedAction, Workload
from dutyfree.model import Action, Stage

HOST = {"kernel": "6.1", "cores": 2}
WORKLOAD = Workload(
    "marked",
    stages=(Stage("repository", run=("echo one > one",)), Stage("dependencies", run=("echo two > two",))),
    opening=(ScriptedAction("both", ActionKind.INSPECT, Action("cat one two"), Expectation(contains=("one\ntwo",))),),
    menu=(ScriptedAction("hello", ActionKind.COMMAND, Action("echo hello"), Expectation(contains=("hello",))),),
    mix={ActionKind.COMMAND: 1.0},
)


def study_of(*arms: Arm, grids: tuple[Grid, ...] = (Grid(3, ("marked",), (2,)),), **more: Any) -> Study:
    return Study("test", with_null(arms), grids, **more)


async def run_study(
    path: Path,
    study: Study,
    *,
    substrates: Mapping[str, Callable[[], Substrate]] | None = None,
    workloads: Mapping[str, Workload] | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] = lambda _: None,
    destroy_timeout_s: float = 0.3,
    stop_after_s: float | None = None,
) -> Results:
    """The results of the study; `substrates` make the arms of these names, the registry the others."""
    known = dict(workloads or {"marked": WORKLOAD})
    makers = dict(substrates or {})

    def load(arm: Arm) -> Substrate:
        return makers[arm.name]() if arm.name in makers else load_substrate(arm)

    fingerprints = {name: fingerprint(workload) for name, workload in known.items()}
    with ResultsWriter(path, study, host=HOST, workloads=fingerprints, resume=resume) as writer:
        runner = StudyRunner(
            writer, known, on_progress=on_progress, load=load, open_timeout_s=10, destroy_timeout_s=destroy_timeout_s
        )
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, runner.stop)
        await runner.run()
    return load_results(path)
