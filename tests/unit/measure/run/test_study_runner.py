"""Running studies: limits of time, interruption, progress, arrivals."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.plan import plan
from dutyfree.measure.design.study import Arm, Condition, Grid, Warmth
from dutyfree.measure.results.directory import journal_records, load_results
from dutyfree.measure.results.records import TrialOutcome
from dutyfree.measure.run import cold
from dutyfree.measure.run.arms import open_arm
from dutyfree.measure.run.arrivals import arrivals_ns, drive
from dutyfree.measure.run.pace import Pace
from dutyfree.measure.run.study_runner import INTERRUPTED, TIME_LIMIT, Progress
from dutyfree.measure.run.trial import Attempt, Job
from dutyfree.measure.run.wave import Unrecorded
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.workload import ActionKind, ScriptedAction, Workload
from dutyfree.model import Action, Phase
from dutyfree.substrates.fake import FakeSubstrate, Latencies
from dutyfree.trace import now_ns
from support.study_runs import WORKLOAD, run_study, study_of

FAKE = Arm("fake", "fake")


def slow(create_s: float) -> FakeSubstrate:
    return FakeSubstrate(latencies=Latencies(create_s=create_s))


async def test_no_block_begins_after_the_time_limit(tmp_path: Path) -> None:
    study = study_of(FAKE, grids=(Grid(100, ("marked",), (1,)),), time_limit_s=2.0)
    start_s = time.monotonic()
    results = await run_study(tmp_path / "r", study, substrates={"fake": lambda: slow(0.1)})
    assert time.monotonic() - start_s < 15
    assert results.cut_short == TIME_LIMIT
    assert 0 < len(results.trials) < results.planned
    arms = [trial.condition.arm for trial in results.trials]
    assert arms.count("fake") == arms.count("null"), "a block is run whole"


async def test_a_study_that_is_stopped_leaves_valid_results_and_no_sandbox(tmp_path: Path) -> None:
    made: list[FakeSubstrate] = []

    def make() -> FakeSubstrate:
        made.append(slow(0.2))
        return made[-1]

    study = study_of(FAKE, grids=(Grid(100, ("marked",), (1,)),))
    results = await run_study(tmp_path / "r", study, substrates={"fake": make}, stop_after_s=0.5)
    assert results.cut_short == INTERRUPTED
    assert all(trial.completed for trial in results.trials)
    assert not made[0].living
    small = replace(study, time_limit_s=0.01)
    again = await run_study(tmp_path / "r", small, substrates={"fake": make}, resume=True)
    assert again.trials[: len(results.trials)] == results.trials


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("warmth", [Warmth.COLD, Warmth.REPOSITORY])
async def test_it_can_be_stopped_at_any_moment(tmp_path: Path, warmth: Warmth, concurrency: int) -> None:
    made: list[FakeSubstrate] = []

    def make() -> FakeSubstrate:
        made.append(slow(0.01))
        return made[-1]

    study = study_of(FAKE, grids=(Grid(4, ("marked",), (1,), (warmth,), (concurrency,)),))
    for moment in range(12):
        path = tmp_path / str(moment)
        results = await run_study(path, study, substrates={"fake": make}, stop_after_s=0.01 * moment)
        assert results.cut_short in (INTERRUPTED, "")
        assert all(trial.completed for trial in results.trials)
        assert not made or not made[-1].living
        whole = await run_study(path, study, substrates={"fake": make}, resume=True)
        assert len(whole.trials) == whole.planned


async def test_progress_is_told_with_the_time_that_is_left(tmp_path: Path) -> None:
    told: list[Progress] = []
    await run_study(tmp_path / "r", study_of(FAKE), substrates={"fake": lambda: slow(0.05)}, on_progress=told.append)
    assert told[-1].done == told[-1].planned == 6
    assert told[0].left_s is None
    assert told[-1].left_s == 0
    assert [each.done for each in told] == sorted(each.done for each in told)


def test_pace_estimates_by_what_is_most_alike() -> None:
    fast, other, far = Condition("a", "T0", 1), Condition("a", "T0", 10), Condition("b", "T1", 1)
    pace = Pace([fast, fast, other, far])
    assert pace.left_s() is None
    pace.note(fast, 2.0)
    assert pace.left_s() == pytest.approx(6.0)
    pace.note(far, 8.0)
    assert (pace.left_s(), pace.left) == (pytest.approx(4.0), 2)
    pace.note(fast, 4.0)
    assert pace.left_s() == pytest.approx(2.6), "the newest counts for three tenths"
    pace.drop(other)
    assert pace.left_s() == 0


async def test_a_substrate_that_there_is_not_is_a_mistake_of_the_study(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        await run_study(tmp_path / "r", study_of(Arm("cell", "nothing-of-this-name")))


# Arrivals.


@given(st.integers(), st.integers(1, 200), st.floats(0.1, 1e4))
def test_arrivals_come_in_order_and_are_the_same_for_the_same_seed(seed: int, count: int, rate_per_s: float) -> None:
    times_ns = arrivals_ns(seed, count, rate_per_s)
    assert times_ns[0] == 0
    assert list(times_ns) == sorted(times_ns)
    assert len(times_ns) == count
    assert times_ns == arrivals_ns(seed, count, rate_per_s)


def test_gaps_are_exponential_with_the_rate_that_was_asked_for() -> None:
    times_ns = arrivals_ns(1, 20_000, 50.0)
    gaps_s = [(after - before) / 1e9 for before, after in pairwise(times_ns)]
    assert statistics.mean(gaps_s) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.stdev(gaps_s) == pytest.approx(1 / 50, rel=0.05)


async def test_those_who_come_while_all_is_full_are_turned_away() -> None:
    away: list[int] = []
    under_way = most = 0

    async def arrive(index: int, intended_ns: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        assert now_ns() >= intended_ns
        await asyncio.sleep(0.2)
        under_way -= 1

    await drive([0] * 10, 4, arrive, lambda index, _: away.append(index))
    assert (most, away, under_way) == (4, [4, 5, 6, 7, 8, 9], 0)


async def test_a_drive_that_is_cancelled_waits_for_what_it_started() -> None:
    ended = []

    async def arrive(index: int, intended_ns: int) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.05)
            ended.append(index)

    task = asyncio.create_task(drive([0, 0, 0], 4, arrive, lambda *_: None))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("away", [False, True])
async def test_a_drive_that_fails_ends_what_it_started(away: bool) -> None:
    ended = []

    def fail(*_: int) -> None:
        raise ZeroDivisionError

    async def arrive(index: int, intended_ns: int) -> None:
        if index == 2:
            fail()
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(index)

    with pytest.raises(ZeroDivisionError):
        await drive([0, 0, 10**7, 10**11], 2 if away else 9, arrive, fail)
    assert sorted(ended) == [0, 1]


async def test_a_trial_is_late_until_its_clock_starts() -> None:
    """Whatever comes between is waited for by the one who arrived, too."""
    study = study_of(FAKE)
    planned = plan(study)[0].trials[0]
    arm = await open_arm(FAKE)
    try:
        attempt = Attempt(
            Job(planned, study, arm, WORKLOAD, draw(WORKLOAD, 2, 1), "m"), Unrecorded(), cold.SeenSandboxes()
        )
        measuring = asyncio.create_task(attempt.measure(0, intended_ns=now_ns()))
        asyncio.get_running_loop().call_soon(time.sleep, 0.5)
        trial = await measuring
    finally:
        await arm.close()
    assert trial.completed
    assert trial.late_ns >= 500e6 > trial.wall_ns


async def test_several_at_once_from_their_intended_start(tmp_path: Path) -> None:
    """The rate is from the trials at concurrency 1; each arrival is a trial of its own, with how late it began."""
    grid = Grid(16, ("marked",), (1,), concurrencies=(1, 3))
    results = await run_study(tmp_path / "r", study_of(FAKE, grids=(grid,)), substrates={"fake": lambda: slow(0.1)})
    assert all(trial.completed for trial in results.trials)
    together = [t for t in results.trials if t.condition.concurrency == 3 and t.condition.arm == "fake"]
    assert len(together) == 16
    assert all(trial.late_ns >= 0 for trial in together)
    assert statistics.median(trial.late_ns for trial in together) < 100e6
    waves = [record for _, record in journal_records(tmp_path / "r") if record["kind"] == "wave"]
    for wave in waves:
        if wave["arm"] == "fake":
            assert wave["rate_per_s"] == pytest.approx(3e9 / wave["service_ns"])
            assert wave["service_ns"] > 100e6


async def test_without_trials_of_one_at_a_time_the_rate_is_calibrated(tmp_path: Path) -> None:
    grid = Grid(4, ("marked",), (1,), concurrencies=(2,))
    results = await run_study(tmp_path / "r", study_of(FAKE, grids=(grid,)), substrates={"fake": lambda: slow(0.02)})
    assert len(results.trials) == results.planned
    waves = [record for _, record in journal_records(tmp_path / "r") if record["kind"] == "wave"]
    assert {wave["basis"] for wave in waves} == {"3 calibration trials"}


async def test_those_whose_agents_think_are_under_way_meanwhile(tmp_path: Path) -> None:
    action = ScriptedAction("slow", ActionKind.COMMAND, Action("true"), think_s=0.1)
    study = study_of(FAKE, grids=(Grid(8, ("w",), (1,), concurrencies=(2,)),), keep_think_time=True)
    results = await run_study(tmp_path / "r", study, workloads={"w": Workload("w", opening=(action,))})
    assert all(trial.completed for trial in results.trials), "nobody was turned away"
    waves = [record for _, record in journal_records(tmp_path / "r") if record["kind"] == "wave"]
    assert all(wave["rate_per_s"] < 2 / 0.1 and "0.1 s of thinking" in wave["basis"] for wave in waves)


class Crowded(FakeSubstrate):
    """Is fast for one, and next to stands still for many."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = 0

    async def create(self, spec, on_span=None):  # type: ignore[no-untyped-def]
        self.at_once += 1
        try:
            await asyncio.sleep(0.01 if self.at_once == 1 else 1.0)
            return await super().create(spec, on_span)
        finally:
            self.at_once -= 1


async def test_overload_is_counted_and_bounded(tmp_path: Path) -> None:
    grid = Grid(30, ("marked",), (1,), concurrencies=(1, 2))
    results = await run_study(tmp_path / "r", study_of(FAKE, grids=(grid,)), substrates={"fake": Crowded})
    assert len(results.trials) == results.planned
    away = [trial for trial in results.trials if trial.cause.startswith("overload")]
    assert away
    for trial in away:
        assert (trial.outcome, trial.failed_phase) == (TrialOutcome.INFRA_FAILED, Phase.QUEUE)
        assert trial.condition == Condition("fake", "marked", 1, concurrency=2)


# Coldness.


async def test_what_was_evicted_is_out_of_memory(tmp_path: Path) -> None:
    try:
        cold.PageCache(tmp_path).close()
    except InvalidRequest as error:
        pytest.skip(f"eviction of the page cache: {error.message}")
    study = study_of(FAKE, grids=(Grid(1, ("marked",), (1,), (Warmth.COLD, Warmth.BASE)),), evict=("page-cache",))
    results = await run_study(tmp_path / "r", study)
    assert all(trial.completed for trial in results.trials)
    begun = [record for _, record in journal_records(tmp_path / "r") if record["kind"] == "trial"]
    for record in begun:
        assert ("evicted" in record) == (record["stage"] == "cold")
    assert not [each for each in (tmp_path / "r").iterdir() if "probe" in each.name]
    assert load_results(tmp_path / "r").study.evict == ("page-cache",)


class Unevictable:
    """A page cache that stays."""

    def __init__(self, directory: Path) -> None:
        pass

    def evict(self) -> dict[str, object]:
        raise InvalidRequest("it was not evicted")

    def close(self) -> None:
        pass


async def test_what_was_not_evicted_is_not_cold_for_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dutyfree.measure.run.study_runner.PageCache", Unevictable)
    study = study_of(FAKE, grids=(Grid(4, ("marked",), concurrencies=(1, 2)),), evict=("page-cache",))
    results = await run_study(tmp_path / "r", study)
    assert {(trial.outcome, trial.cause) for trial in results.trials} == {(TrialOutcome.NOT_COLD, "it was not evicted")}


def test_the_probe_knows_what_is_in_memory(tmp_path: Path) -> None:
    probe = cold._Probe(tmp_path)
    try:
        probe.touch()
        assert probe.resident_pages() == cold._PAGES
    finally:
        probe.close()
    assert not list(tmp_path.iterdir())


def test_an_eviction_that_does_not_take_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretence = tmp_path / "drop_caches"
    pretence.touch()
    monkeypatch.setattr(cold, "_DROP_CACHES", pretence)
    with pytest.raises(InvalidRequest, match="was not evicted"):
        cold.PageCache(tmp_path)
    monkeypatch.setattr(cold, "_DROP_CACHES", tmp_path / "none" / "at-all")
    with pytest.raises(InvalidRequest, match="cannot be evicted") as caught:
        cold.PageCache(tmp_path)
    assert "root" in (caught.value.hint or "")
    assert [each.name for each in tmp_path.iterdir()] == ["drop_caches"]
