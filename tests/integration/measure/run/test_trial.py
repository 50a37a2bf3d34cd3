"""Trials in cells."""

from __future__ import annotations

from pathlib import Path

from dutyfree.measure.design.study import Arm, Grid, Warmth
from dutyfree.measure.results.records import TrialOutcome
from dutyfree.measure.workloads.workload import ActionKind, Expectation, ScriptedAction, Workload
from dutyfree.model import Action, Stage
from support.study_runs import run_study, study_of


async def test_what_is_left_to_do_goes_by_what_the_stages_before_it_said(tmp_path: Path) -> None:
    seen = ScriptedAction("seen", ActionKind.INSPECT, Action("cat /tmp/seen"), Expectation(contains=("one two /tmp",)))
    workload = Workload(
        "staged",
        stages=(
            Stage("repository", env={"A": "one", "B": "old"}, cwd="/tmp"),
            Stage("dependencies", env={"B": "two"}, run=('echo "$A $B $(pwd)" > /tmp/seen',)),
        ),
        opening=(seen,),
    )
    grid = Grid(1, ("staged",), warmths=(Warmth.COLD, Warmth.REPOSITORY))
    results = await run_study(
        tmp_path / "r", study_of(Arm("cell", "cell"), grids=(grid,)), workloads={"staged": workload}
    )
    assert [(trial.outcome, trial.cause) for trial in results.trials if trial.condition.arm == "cell"] == [
        (TrialOutcome.COMPLETED, "")
    ] * 2
