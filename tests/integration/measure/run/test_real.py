"""Studies of substrates that really run something: what the paper's tiers take, and where it goes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from dutyfree.errors import DutyfreeError
from dutyfree.measure.design.file import with_null
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.results.host import host_facts
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.results.writer import ResultsWriter
from dutyfree.measure.run.gathering import gather
from dutyfree.measure.run.study_runner import StudyRunner
from dutyfree.model import Phase

RESIDUE = 0.02


async def measured(path: Path, *grids: Grid) -> Results:
    study = Study("real", with_null((Arm("process", "process"), Arm("cell", "cell"))), grids, trial_timeout_s=100)
    try:
        gathered = gather(study)
    except DutyfreeError as error:
        pytest.skip(f"materials of workloads: {error.message}")
    with ResultsWriter(path, study, host=host_facts(), workloads=gathered.fingerprints) as writer:
        runner = StudyRunner(writer, gathered.workloads)
        assert await runner.run() == ""
        if "cell" in runner.unavailable:
            pytest.skip(f"cells: {runner.unavailable['cell']}")
    return load_results(path)


def by_condition(results: Results) -> dict[Condition, list[Trial]]:
    found: dict[Condition, list[Trial]] = defaultdict(list)
    for trial in results.trials:
        found[trial.condition].append(trial)
    return found


async def test_phases_add_up_and_little_is_left_over(tmp_path: Path) -> None:
    results = await measured(tmp_path / "r", Grid(10, ("T0",), (1, 10)), Grid(5, ("T0",), (150,)))
    assert {trial.cause for trial in results.trials} == {""}
    assert len(results.trials) == results.planned
    for condition, trials in by_condition(results).items():
        residues = []
        for trial in trials:
            assert sum(trial.by_phase.values()) == trial.wall_ns
            assert len(trial.actions) == condition.length
            residues.append(trial.by_phase[Phase.UNATTRIBUTED] / trial.wall_ns)
        if condition.arm != "null":
            assert statistics.median(residues) < RESIDUE, condition


@pytest.mark.slow
async def test_all_tiers_are_seen_to_do_what_they_should(tmp_path: Path) -> None:
    grid = Grid(1, ("T0", "T1", "T2"), (10,), (Warmth.COLD, Warmth.BASE, Warmth.REPOSITORY, Warmth.DEPENDENCIES))
    results = await measured(tmp_path / "r", grid)
    assert {trial.cause for trial in results.trials} == {""}
    for condition, [trial] in by_condition(results).items():
        if condition.arm != "null":
            assert (trial.by_phase[Phase.CREATE] > 0) == (condition.warmth is Warmth.COLD)
            if condition.workload == "T2":
                assert (trial.by_phase[Phase.SETUP] > 0) == (condition.warmth is not Warmth.DEPENDENCIES)


async def test_several_at_once(tmp_path: Path) -> None:
    results = await measured(tmp_path / "r", Grid(16, ("T0",), (5,), concurrencies=(1, 2)))
    assert len(results.trials) == results.planned
    # A machine that is busy with other things may turn some away, and says so.
    assert {trial.cause.partition(":")[0] for trial in results.trials} <= {"", "overload"}
    together = [trial for trial in results.trials if trial.condition.concurrency == 2]
    assert sum(trial.completed for trial in together) >= len(together) / 2
    assert any(trial.late_ns > 0 for trial in together)
