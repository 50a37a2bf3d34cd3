"""Results on disk: what is written is read again, and what is damaged is refused."""

from __future__ import annotations

import gzip
import json
import re
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.measure.design.plan import plan
from dutyfree.measure.design.study import Arm, Condition, Grid, Study
from dutyfree.measure.results import layout
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.results.reading import JournalReading
from dutyfree.measure.results.records import ActionRecord, Results, Trial, TrialOutcome
from dutyfree.measure.results.writer import ResultsWriter, Unwritable
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase
from dutyfree.substrates.fake import FakeSubstrate, Latencies
from support.study_runs import HOST, WORKLOAD, run_study, study_of

FAKE = Arm("fake", "fake")
STUDY = study_of(FAKE, grids=(Grid(2, ("marked",), (2,)),))


@pytest.fixture
async def done(tmp_path: Path) -> Path:
    """The directory of a study that is over."""
    await run_study(tmp_path / "results", STUDY)
    return tmp_path / "results"


def writer(path: Path, study: Study = STUDY, *, resume: bool = False, **more: Any) -> ResultsWriter:
    options: dict[str, Any] = {"host": HOST, "workloads": {}} | more
    return ResultsWriter(path, study, resume=resume, **options)


def a_trial(number: int = 0) -> Trial:
    parts = {Phase.CREATE: 10, Phase.DISPATCH: 2, Phase.EXECUTE: 4, Phase.OBSERVE: 6, Phase.UNATTRIBUTED: 4}
    return Trial(
        number=number,
        sequence=number,
        block=0,
        condition=Condition("fake", "marked", 2),
        outcome=TrialOutcome.COMPLETED,
        wall_ns=26,
        first_observation_ns=16,
        by_phase=dict.fromkeys(Phase, 0) | parts,
        steps={"create/spawn": 5},
        actions=(ActionRecord("both", ActionKind.INSPECT, 1, 2, 3), ActionRecord("hello", ActionKind.COMMAND, 1, 2, 3)),
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    planned = [trial for block in plan(STUDY) for trial in block.trials if trial.condition.arm == "fake"]
    failed = {"outcome": TrialOutcome.TIMED_OUT, "failed_phase": Phase.EXECUTE, "cause": "\ud800 odd\n\x1b[2J"}
    trials = (
        replace(a_trial(planned[0].number), sequence=0, block=planned[0].block),
        replace(a_trial(planned[1].number), sequence=1, block=planned[1].block, late_ns=7, **failed),
    )
    with writer(tmp_path / "r") as out:
        out.arm("fake", {"version": "1"})
        for trial, on in zip(trials, planned, strict=True):
            out.begin(on, sequence=trial.sequence, late_ns=trial.late_ns, evicted={})
            out.span(trial.number, Phase.CREATE, "spawn", 0, 5)
            for action in trial.actions:
                out.action(trial.number, 10, action)
            out.end(trial, sandbox="fake-1")
        out.stop("enough")
    expected = Results(STUDY, HOST, {"fake": {"version": "1"}}, trials, planned=4, cut_short="enough")
    assert load_results(tmp_path / "r") == expected


async def test_a_study_that_is_over_is_whole(done: Path) -> None:
    results = load_results(done)
    assert results.study == STUDY
    assert results.host == HOST
    assert [trial.number for trial in results.trials] == list(range(results.planned)) == [0, 1, 2, 3]
    assert results.cut_short == ""
    assert results.arms["fake"]["isolation"] == "none"
    assert "limit-memory" in results.arms["fake"]["unenforced"]


async def test_a_packed_journal_is_read(done: Path) -> None:
    before = load_results(done)
    journal = done / layout.JOURNAL
    (done / layout.PACKED_JOURNAL).write_bytes(gzip.compress(journal.read_bytes()))
    journal.unlink()
    assert load_results(done) == before
    with pytest.raises(InvalidRequest, match="packed"), writer(done, resume=True):
        pass
    (done / layout.PACKED_JOURNAL).write_bytes(gzip.compress(b"x" * 100_000)[:50])
    with pytest.raises(InvalidRequest):
        load_results(done)


async def test_a_trial_without_an_end_never_was(done: Path) -> None:
    journal = done / layout.JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    last_end = max(n for n, line in enumerate(lines) if b'"kind":"end"' in line)
    for cut in (b"".join(lines[:last_end]), b"".join(lines[:last_end]) + lines[last_end][:-5]):
        journal.write_bytes(cut)
        results = load_results(done)
        assert len(results.trials) == 3
        assert "killed" in results.cut_short


@pytest.mark.parametrize("name", [layout.STUDY, layout.HOST, layout.JOURNAL])
async def test_every_cut_of_every_file_is_refused_or_understood(done: Path, name: str) -> None:
    file = done / name
    data = file.read_bytes()
    numbers = {trial.number for trial in load_results(done).trials}
    for length in range(0, len(data) - 1, max(1, len(data) // 60)):
        file.write_bytes(data[:length])
        try:
            found = load_results(done)
        except InvalidRequest:
            continue
        assert name == layout.JOURNAL
        assert {trial.number for trial in found.trials} <= numbers


def changed(key: str, value: Any, kind: str) -> Callable[[list[dict[str, Any]]], None]:
    def change(records: list[dict[str, Any]]) -> None:
        next(record for record in records if record.get("kind") == kind)[key] = value

    return change


def repeated(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda records: records.append(next(record for record in records if record.get("kind") == kind))


@pytest.mark.parametrize(
    "damage",
    [
        changed("wall_ns", 1, "end"),
        changed("wall_ns", -1, "end"),
        changed("wall_ns", 1.5, "end"),
        changed("wall_ns", True, "end"),
        changed("wall_ns", None, "end"),
        changed("by_phase", {"sleep": 1}, "end"),
        changed("by_phase", {}, "end"),
        changed("outcome", "fine", "end"),
        changed("first_observation_ns", None, "end"),
        changed("first_observation_ns", 10**15, "end"),
        changed("failed_phase", 3, "end"),
        changed("steps", [1], "end"),
        changed("cause", 5, "end"),
        changed("trial", 77, "end"),
        changed("trial", 77, "action"),
        changed("trial", "0", "action"),
        changed("parts_ns", [1, 2], "action"),
        changed("parts_ns", [1, 2, -3], "action"),
        changed("parts_ns", [1, 2, 10**15], "action"),
        changed("parts_ns", "123", "action"),
        changed("of", "sabotage", "action"),
        changed("more", 1, "action"),
        changed("phase", "nap", "span"),
        changed("end_ns", -4, "span"),
        changed("arm", "stranger", "trial"),
        changed("stage", "hot", "trial"),
        changed("length", "long", "trial"),
        changed("length", 3, "trial"),
        changed("sequence", 2**63, "trial"),
        changed("start_ns", 2**63, "action"),
        changed("kind", "surprise", "trial"),
        changed("facts", 3, "arm"),
        repeated("end"),
        repeated("trial"),
        repeated("action"),
    ],
)
async def test_a_record_that_cannot_be_true_is_refused_with_its_line(
    done: Path, damage: Callable[[list[dict[str, Any]]], None]
) -> None:
    journal = done / layout.JOURNAL
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    damage(records)
    journal.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.raises(InvalidRequest) as caught:
        load_results(done)
    assert re.search(r"journal\.jsonl, line \d+", caught.value.message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["kind", "trial", "name", "of", "start_ns", "parts_ns", "outcome", "wall_ns", "arm", "stage"])
kinds = st.sampled_from(["trial", "action", "span", "end", "arm", "wave", "run", "stop"])


@given(st.lists(st.dictionaries(keys, json_values), max_size=5), kinds)
def test_any_records_are_understood_or_refused(records: list[dict[str, Any]], kind: str) -> None:
    reading = JournalReading({"fake"})
    for line, record in enumerate(records, start=2):
        try:
            reading.take(line, {**record, "kind": kind})
        except InvalidRequest as error:
            assert f"line {line}" in error.message  # noqa: PT017 - most records are refused, a few are not
    assert reading.trials() == ()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (layout.STUDY, b"[]"),
        (layout.STUDY, b"{}"),
        (layout.STUDY, b'{"format": "dutyfree-study", "schema": 2}'),
        (layout.STUDY, b'{"format": "dutyfree-study", "schema": 1, "planned": "x", "workloads": {}, "study": {}}'),
        (layout.STUDY, b"\xff"),
        (layout.STUDY, b"[" * 100_000),
        (layout.HOST, b"3"),
        (layout.JOURNAL, b'{"format":"other"}\n'),
    ],
)
async def test_files_of_something_else_are_refused(done: Path, file: str, content: bytes) -> None:
    (done / file).write_bytes(content)
    with pytest.raises(InvalidRequest, match=str(done)):
        load_results(done)


def test_a_directory_without_results(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no results"):
        load_results(tmp_path)


async def test_results_are_never_written_over(done: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds results already"), writer(done):
        pass


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(InvalidRequest, match=r"thesis\.tex"), writer(tmp_path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no results to continue"), writer(tmp_path / "none", resume=True):
        pass


@pytest.mark.parametrize(
    ("study", "more", "told"),
    [
        (replace(STUDY, seed=2), {}, "another study: its seed"),
        (replace(STUDY, arms=STUDY.arms[1:]), {}, "another study: its arms"),
        (STUDY, {"host": HOST | {"cores": 64}}, "measured elsewhere: cores was 2, and is 64"),
        (STUDY, {"workloads": {"marked": "0" * 64}}, "'marked' has changed"),
    ],
)
async def test_only_the_same_study_goes_on(done: Path, study: Study, more: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told), writer(done, study, resume=True, **more):
        pass


async def test_another_time_limit_is_the_same_study(done: Path) -> None:
    with writer(done, replace(STUDY, time_limit_s=5.0), resume=True) as out:
        assert out.done == {0, 1, 2, 3}
        assert out.next_sequence() == 4


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    with writer(tmp_path / "r"), pytest.raises(CapacityError), writer(tmp_path / "r", resume=True):
        pass


def test_a_beginning_that_was_killed_is_begun_again(tmp_path: Path) -> None:
    """Before the study is in its place, nothing was promised."""
    path = tmp_path / "r"
    with writer(path):
        pass
    (path / layout.STUDY).rename(path / ".x.dutyfree-part")
    with writer(path) as out:
        assert out.done == frozenset()
    assert load_results(path).planned == 4


def test_a_study_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path):
        with pytest.raises(InvalidRequest), writer(path) as out:
            out.arm("fake", {"version": b"what JSON cannot hold"})
        assert not list(tmp_path.iterdir())


def test_a_study_that_has_begun_leaves_what_there_is(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), writer(tmp_path / "r") as out:
        out.begin(plan(STUDY)[0].trials[0], sequence=0, late_ns=0, evicted={})
        raise ZeroDivisionError
    assert load_results(tmp_path / "r").trials == ()
    (tmp_path / "r" / layout.STUDY).unlink()
    with pytest.raises(InvalidRequest, match="holds trials"), writer(tmp_path / "r"):
        pass
    assert (tmp_path / "r" / layout.JOURNAL).exists()


@pytest.mark.parametrize("path", ["/proc/results", "/dev/null/results"])
def test_a_place_that_can_hold_nothing(path: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot hold results"), writer(Path(path)):
        pass


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_full_disk_ends_the_study_and_is_no_failure_of_a_substrate(tmp_path: Path, concurrency: int) -> None:
    path, study = tmp_path / "r", study_of(FAKE, grids=(Grid(40, ("marked",), (2,), concurrencies=(concurrency,)),))
    # Sleep is most of a trial, so that a busy machine does not look overloaded to the study.
    slow = partial(FakeSubstrate, latencies=Latencies(create_s=0.05))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(Unwritable, match="too large"):
            await run_study(path, study, substrates={"fake": slow})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    before = load_results(path).trials
    assert 0 < len(before) < 80
    results = await run_study(path, study, substrates={"fake": slow}, resume=True)
    assert sorted(trial.number for trial in results.trials) == list(range(80))
    assert all(trial.completed for trial in results.trials)
    assert results.trials[: len(before)] == before


async def test_a_study_goes_on_where_it_stopped(done: Path, tmp_path: Path) -> None:
    journal = done / layout.JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    for cut in range(2, len(lines), 3):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(done, copy)
        (copy / layout.JOURNAL).write_bytes(b"".join(lines[:cut]) + lines[cut][:7])
        before = load_results(copy).trials
        results = await run_study(copy, STUDY, resume=True)
        assert sorted(trial.number for trial in results.trials) == [0, 1, 2, 3]
        assert results.trials[: len(before)] == before
        assert results.cut_short == ""
        assert [trial.sequence for trial in results.trials] == [0, 1, 2, 3]


async def test_parquet_has_all_of_it(done: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from dutyfree.measure.results.parquet import export_parquet

    results = load_results(done)
    trials, actions, spans = (parquet.read_table(path).to_pylist() for path in export_parquet(done))
    assert [row["trial"] for row in trials] == [trial.number for trial in results.trials]
    for row, trial in zip(trials, results.trials, strict=True):
        assert sum(row[f"{phase}_ns"] for phase in Phase) == row["wall_ns"] == trial.wall_ns
        own = [each for each in actions if each["trial"] == trial.number]
        assert [each["name"] for each in own] == [action.name for action in trial.actions]
        assert [each["position"] for each in own] == list(range(len(own)))
        assert {each["phase"] for each in spans if each["trial"] == trial.number} >= {"create", "destroy", "setup"}


async def test_parquet_leaves_out_what_was_killed(done: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from dutyfree.measure.results.parquet import export_parquet

    journal = done / layout.JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: max(n for n, line in enumerate(lines) if b'"kind":"end"' in line)]))
    await run_study(done, STUDY, resume=True)
    _, actions, _ = (parquet.read_table(path).to_pylist() for path in export_parquet(done))
    assert len(actions) == sum(len(trial.actions) for trial in load_results(done).trials)
    assert {action["name"] for action in actions} == {each.name for each in (*WORKLOAD.opening, *WORKLOAD.menu)}
