"""Leases as trials: what a run with a pool paid, read by the same analysis as a study."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dutyfree
from dutyfree.measure.live import LeaseJournal
from dutyfree.measure.report.write import write_report
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.stats.analysis import analyse
from dutyfree.model import Phase
from dutyfree.pool.options import PoolOptions


async def test_leases_become_a_report(tmp_path: Path) -> None:
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=4)) as host:
        with LeaseJournal(tmp_path / "run", host.pool, name="a training run") as journal:
            for number in range(14):
                async with host.lease(owner="trainer") as box:
                    for _ in range(3):
                        await box.run("true")
                        await asyncio.sleep(0.01)
                    if number == 0:
                        await asyncio.gather(*(box.run("sleep 0.05") for _ in range(3)))
            async with host.lease() as box:
                pass
    assert journal.left_out == 2
    results = load_results(tmp_path / "run")
    assert len(results.trials) == 13, "not the one with several at once, nor the one with none"
    for trial in results.trials:
        assert trial.condition.workload == "trainer"
        assert len(trial.actions) == trial.condition.length == 3
        assert trial.by_phase[Phase.UNATTRIBUTED] == 0
        acting_ns = sum(each.latency_ns for each in trial.actions)
        assert trial.wall_ns - trial.by_phase[Phase.QUEUE] < 30e6 + acting_ns, "thinking is not our time"
        assert trial.by_phase[Phase.QUEUE] > 0
    page = write_report(results, analyse(results), tmp_path / "report").page
    assert "a training run" in page.read_text()


async def test_a_directory_with_results_is_not_overwritten(tmp_path: Path) -> None:
    async with dutyfree.local("process", pool=PoolOptions()) as host:
        with LeaseJournal(tmp_path / "run", host.pool):
            async with host.lease() as box:
                await box.run("true")
        with pytest.raises(dutyfree.InvalidRequest), LeaseJournal(tmp_path / "run", host.pool):
            pass
