"""Compact copies of results: equal numbers from less than half of the bytes, and damaged files are refused."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dutyfree.cli.main import main
from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Arm, Grid, Study, Warmth
from dutyfree.measure.results import compact, layout
from dutyfree.measure.results.directory import journal_records, load_results
from dutyfree.measure.results.records import Results
from dutyfree.measure.results.writer import ResultsWriter
from support import report_samples as samples
from support.repository import ROOT
from support.study_runs import HOST
from support.synthetic_results import synthetic_results, write_results

STUDY = Study(
    "small",
    (Arm("null", "null"), Arm("process", "process"), Arm("cell", "cell"), Arm("gvisor", "gvisor")),
    (
        Grid(30, ("T0", "T2"), lengths=(1, 10)),
        Grid(40, ("T1",), lengths=(3,), concurrencies=(2,)),
        Grid(12, ("T2",), warmths=(Warmth.REPOSITORY,)),
    ),
)
EXAMPLE = ROOT / "examples" / "study" / "results"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with a journal."""
    results = synthetic_results(STUDY)
    walls = {"gvisor": "user-kernel", "cell": "namespace"}
    facts = {arm: {**each, "isolation": walls.get(arm, "none")} for arm, each in results.arms.items()}
    results = replace(results, arms=facts)
    assert len({trial.outcome for trial in results.trials}) > 1
    assert any(trial.steps for trial in results.trials)
    return write_results(results, tmp_path_factory.mktemp("compact") / "full")


@pytest.fixture(scope="module")
def small(full: Path) -> Path:
    """Its compact copy."""
    directory = full.parent / "small"
    compact.write_compact(load_results(full), full, directory)
    return directory


def test_a_compact_copy_holds_equal_results(full: Path, small: Path) -> None:
    assert load_results(small) == load_results(full)
    assert sorted(path.name for path in small.iterdir()) == [layout.HOST, layout.STUDY, layout.COMPACT]


@pytest.mark.parametrize("sample", [samples.whole, samples.tiny, samples.only_failures, samples.hostile])
def test_all_kinds_of_results_are_kept(sample: Callable[[], tuple[Results, Any]], tmp_path: Path) -> None:
    results, _ = sample()
    path = tmp_path / layout.COMPACT
    path.write_bytes(compact.pack(results))
    read = compact.read_compact(path, {arm.name for arm in results.study.arms})
    assert (read.trials, read.arms, read.cut_short) == (results.trials, results.arms, results.cut_short)


def test_every_command_prints_the_same_numbers(full: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = full.parent / "other"
    write_results(synthetic_results(STUDY, seed=5), other)

    def printed(directory: Path) -> list[str]:
        commands = (
            ("report", directory, "--markdown", "--output", full.parent / "report"),
            ("compare", other, directory),
            ("project", directory, "--trajectories", 1000, "--steps", 50),
            ("advise", directory, "--trust", "model", "--actions", 50, "--work-s", 5),
        )
        texts = []
        for command in commands:
            main([str(each) for each in command])
            output = capsys.readouterr()
            assert not output.err
            texts.append(output.out.replace(str(directory), "DIR"))
        return [*texts, (full.parent / "report" / "report.md").read_text(), _analysis(full.parent / "report")]

    before = printed(full)
    assert all(len(text) > 100 for text in before)
    assert printed(small) == before


def _analysis(report: Path) -> str:
    return (report / "analysis.json").read_text()


def test_the_command_writes_a_copy_with_its_page(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    assert main(["report", str(full), "--compact", str(copy), "--markdown"]) == 0
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert names == {layout.STUDY, layout.HOST, layout.COMPACT, "report/index.html", "report/report.md"}
    assert "](index.html#figure-1-decomposition)" in (copy / "report" / "report.md").read_text()
    assert 'id="figure-1-decomposition"' in (copy / "report" / "index.html").read_text()
    capsys.readouterr()
    assert main(["report", str(full), "--compact", str(copy)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_compact_copy_is_not_resumed(small: Path) -> None:
    with (
        pytest.raises(InvalidRequest, match="compact copy"),
        ResultsWriter(small, STUDY, host=HOST, workloads={}, resume=True),
    ):
        pass
    with pytest.raises(InvalidRequest, match="no journal: it is a compact copy"):
        next(journal_records(small))


def test_a_journal_is_read_before_a_compact_copy(full: Path, tmp_path: Path) -> None:
    directory = write_results(load_results(full), tmp_path / "both")
    (directory / layout.COMPACT).write_bytes(b"not read")
    assert load_results(directory) == load_results(full)


def header_with(key: str, value: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        line, _, rest = data.partition(b"\n")
        return json.dumps(json.loads(line) | {key: value}).encode() + b"\n" + rest

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: b"3\n",
        lambda data: b"[" * 100_000,
        lambda data: data[:-8] + b"\xff" * 8,
        lambda data: data[: len(data) // 2] + b"\x80" * (len(data) - len(data) // 2),
        header_with("format", "other"),
        header_with("version", 2),
        header_with("columns", {}),
        header_with("columns", {"trial": -1}),
        header_with("conditions", []),
        header_with("conditions", [["stranger", "T0", 1, "cold", 1]] * 500),
        header_with("conditions", [["process", "T0", 1, "hot", 1]] * 500),
        header_with("conditions", [["process", "T0", -1, "cold", 1]] * 500),
        header_with("endings", [["fine", None, "", True]] * 500),
        header_with("endings", [["completed", None, 3, True]] * 500),
        header_with("endings", [["completed", None, "", False]] * 500),
        header_with("trajectories", [[0] * 1000] * 500),
        header_with("trajectories", [[-1]] * 500),
        header_with("step_names", 5),
        header_with("actions", []),
        header_with("arms", []),
        header_with("arms", {"process": 5}),
        header_with("cut_short", None),
    ],
)
def test_a_damaged_copy_is_refused_with_its_name(small: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / layout.COMPACT
    path.write_bytes(lzma.compress(damage(lzma.decompress((small / layout.COMPACT).read_bytes())), preset=0))
    with pytest.raises(InvalidRequest, match=str(path)):
        compact.read_compact(path, {arm.name for arm in STUDY.arms})


def test_every_cut_of_the_file_is_refused(small: Path, tmp_path: Path) -> None:
    data = (small / layout.COMPACT).read_bytes()
    path = tmp_path / layout.COMPACT
    for length in range(0, len(data), len(data) // 20):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidRequest):
            compact.read_compact(path, {arm.name for arm in STUDY.arms})


def test_a_trial_twice_is_refused(full: Path, tmp_path: Path) -> None:
    results = load_results(full)
    path = tmp_path / layout.COMPACT
    path.write_bytes(compact.pack(replace(results, trials=results.trials[:1] * 2)))
    with pytest.raises(InvalidRequest, match="twice"):
        compact.read_compact(path, {arm.name for arm in STUDY.arms})


def test_a_file_that_would_fill_the_memory_is_refused(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(InvalidRequest, match="too long"):
        compact.read_compact(small / layout.COMPACT, {arm.name for arm in STUDY.arms})


def test_the_example_study_is_compact_and_whole() -> None:
    results = load_results(EXAMPLE)
    assert len(results.trials) == results.planned == 6534
    assert sum(len(trial.actions) for trial in results.trials) == 141_437
