"""Leases as trials: what a run with a pool paid, read by the same analysis as a study."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import dutyfree
from dutyfree.cli.main import main
from dutyfree.measure.design.study import Warmth
from dutyfree.measure.live import LeaseJournal
from dutyfree.measure.report.terminal import summary
from dutyfree.measure.report.write import write_report
from dutyfree.measure.results import layout
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.stats.analysis import analyse
from dutyfree.model import Phase
from dutyfree.pool.options import PoolOptions
from dutyfree.substrates.fake import Latencies
from support.pools import until


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


async def a_warm_run(path: Path) -> None:
    """Leases that all find a warm sandbox, one after the other."""
    recipe = dutyfree.Image()
    async with dutyfree.local("fake", latencies=Latencies(create_s=0.05), pool=PoolOptions(sandboxes=4)) as host:
        await host.pool.announce([(recipe, 40)], name="step")
        await until(lambda: host.pool.status().idle == 4)
        with LeaseJournal(path, host.pool, name="all warm"):
            for number in range(13):
                await until(lambda: host.pool.status().idle > 0)
                async with host.lease(owner="trainer") as box:
                    for _ in range(1 + number % 2):
                        await box.run("true")
        assert host.pool.status().hit_rate == 1.0


@pytest.fixture(scope="module")
def warm_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "run"
    asyncio.run(a_warm_run(path))
    return path


def test_the_report_of_a_warm_run_begins_with_its_bill_and_has_its_numbers(warm_run: Path, tmp_path: Path) -> None:
    results = load_results(warm_run)
    assert results.bill is not None
    assert (results.bill.leases, results.bill.warm, results.bill.hit_rate) == (13, 13, 1.0)
    assert results.main_warmth is Warmth.DEPENDENCIES
    assert results.bill.cold_ns is not None
    assert results.bill.cold_ns >= 13 * 50e6, "by the creations of this host, also those before the journal"
    analysis = analyse(results)
    text = summary(results, analysis)
    lines = text.splitlines()
    assert max(map(len, summary(results, analysis, width=80).splitlines())) <= 80
    assert lines[2].startswith("bill of 13 leases on fake")
    assert "13 of 13 warm (100.0 %)" in text
    assert any(line.startswith("Tax of one action, trainer") for line in lines), "the table is not empty"
    assert "cold start" not in text.lower(), "there was none"
    assert "null substrate" not in text, "a live run has no floor to miss"
    written = write_report(results, analysis, tmp_path / "report", markdown=True)
    page = written.page.read_text()
    assert page.index("The bill") < page.index("What this says")
    assert "randomised blocks" not in page.lower(), "nothing of a live run was"
    assert written.markdown is not None
    assert "    bill of 13 leases on fake" in written.markdown.read_text()


def test_report_and_project_read_a_warm_run(warm_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "small"
    assert main(["report", str(warm_run), "--compact", str(small), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bill"]["leases"] == 13
    assert load_results(small) == load_results(warm_run)
    assert main(["project", str(warm_run), "--steps", "2"]) == 0
    assert "warm at dependencies, leases of a live run" in capsys.readouterr().out


async def test_a_run_of_warm_and_cold_leases_is_reported_by_its_majority(tmp_path: Path) -> None:
    async with dutyfree.local("fake", pool=PoolOptions(sandboxes=2)) as host:
        with LeaseJournal(tmp_path / "run", host.pool):
            async with host.lease() as box:
                await box.run("true")
            await host.pool.announce([(dutyfree.Image(), 9)], name="step")
            for _ in range(3):
                await until(lambda: host.pool.status().idle > 0)
                async with host.lease() as box:
                    await box.run("true")
    results = load_results(tmp_path / "run")
    assert [trial.condition.warmth for trial in results.trials] == [Warmth.COLD, *[Warmth.DEPENDENCIES] * 3]
    text = " ".join(summary(results, analyse(results)).split())
    assert "Medians are of the 3 that were warm at dependencies, not of 1 others." in text
    assert results.bill is not None
    assert (results.bill.leases, results.bill.cold) == (4, 1)


async def test_leases_without_actions_are_in_the_bill_alone(tmp_path: Path) -> None:
    async with dutyfree.local("fake", pool=PoolOptions(sandboxes=2)) as host:
        with LeaseJournal(tmp_path / "run", host.pool):
            async with host.lease():
                pass
    results = load_results(tmp_path / "run")
    text = summary(results, analyse(results))
    assert "bill of 1 lease on fake" in text
    assert "1 had no actions" in " ".join(text.split())
    assert write_report(results, analyse(results), tmp_path / "report").page.exists()


async def test_a_damaged_bill_is_refused_by_its_name(warm_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in (layout.STUDY, layout.HOST, layout.JOURNAL):
        (copy / each).write_bytes((warm_run / each).read_bytes())
    assert load_results(copy).bill is None
    (copy / layout.BILL).write_text('{"version": 1, "leases": -1}')
    with pytest.raises(dutyfree.InvalidRequest, match=r"bill\.json is no bill"):
        load_results(copy)
