"""`dutyfree bench`, as a shell sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dutyfree.measure.results import layout
from dutyfree.measure.results.directory import load_results
from support.repository import ROOT
from support.shell import BENCH, bench, bench_json


def test_a_study_from_flags(tmp_path: Path) -> None:
    out = tmp_path / "r"
    answer = bench_json(
        *("--substrate", "process", "--substrate", "fake:name=memory", "--workload", "T0"),
        *("--length", "1", "--length", "5", "--trials", "2", "--seed", "9", "--output", out),
    )
    assert (answer["trials"], answer["planned"], answer["failed"], answer["cut_short"]) == (12, 12, 0, "")
    assert {(each["arm"], each["length"]) for each in answer["conditions"]} == {
        (arm, length) for arm in ("null", "process", "memory") for length in (1, 5)
    }
    assert all(each["trajectory_ms"] > 0 for each in answer["conditions"])
    results = load_results(out)
    assert results.study.seed == 9
    assert results.host["cores"] >= 1


def test_a_study_from_a_file_with_a_summary(tmp_path: Path) -> None:
    study = tmp_path / "s.toml"
    study.write_text('[[arm]]\nsubstrate = "fake"\n[[grid]]\ntrials = 2\nworkloads = ["T0"]\n')
    done = bench(study, "--output", tmp_path / "r", "--no-report", "--quiet")
    assert "fake" in done.stdout
    assert str(tmp_path / "r") in done.stdout
    assert done.stderr == ""


def test_a_time_limit_and_then_the_rest(tmp_path: Path) -> None:
    flags = ("--substrate", "process", "--trials", "200", "--length", "10")
    answer = bench_json(*flags, "--output", tmp_path / "r", "--time-limit", "1s")
    assert answer["cut_short"] == "the time limit was reached"
    first = answer["trials"]
    assert 0 < first < answer["planned"] == 400
    answer = bench_json("--output", tmp_path / "r", "--resume", "--time-limit", "1s")
    assert answer["trials"] > first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_valid_result(tmp_path: Path, number: signal.Signals) -> None:
    words = ["--json", "--no-report", "--substrate", "process", "--trials", "1000", "--output", str(tmp_path / "r")]
    child = subprocess.Popen([*BENCH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "r" / layout.JOURNAL
    end_s = time.monotonic() + 30
    while not journal.exists() or b'"kind":"end"' not in journal.read_bytes():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    os.kill(child.pid, number)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "--resume" in err
    answer = json.loads(out)
    assert answer["cut_short"] == "it was interrupted"
    assert answer["trials"] == len(load_results(tmp_path / "r").trials) >= 1


def test_a_substrate_that_cannot_be_had(tmp_path: Path) -> None:
    nowhere = f"docker:host=unix://{tmp_path}/none.sock"
    answer = bench_json("--substrate", nowhere, "--substrate", "fake", "--trials", "1", "--output", tmp_path / "a")
    [name] = answer["unavailable"]
    assert name.startswith("docker")
    assert {each["arm"] for each in answer["conditions"]} == {"null", "fake"}
    bench_json("--substrate", nowhere, "--trials", "1", "--output", tmp_path / "b", code=3)


def test_a_study_of_which_nothing_succeeds(tmp_path: Path) -> None:
    workload = tmp_path / "w.toml"
    workload.write_text(
        'name = "w"\n[[opening]]\nname = "no"\nkind = "command"\nrun = "false"\nexpect = { exit_code = 0 }\n'
    )
    flags = ("--workload", workload, "--length", "1", "--trials", "2")
    answer = bench_json("--substrate", "fake", *flags, "--output", tmp_path / "r", code=1)
    [fake] = [each for each in answer["conditions"] if each["arm"] == "fake"]
    assert (fake["failed"], fake["causes"], fake["trajectory_ms"]) == (2, ["no: exit code 1, not 0"], None)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["none.toml"], "cannot read"),
        (["--substrate", "cel"], "there is no substrate"),
        (["--substrate", "fake", "--workload", "T9"], "no workload"),
        (["--substrate", "fake", "--stage", "hot"], "no stage"),
        (["--substrate", "fake", "--trials", "0"], "trials"),
        (["--substrate", "fake", "--length", "0"], "positive"),
        (["--substrate", "fake", "--length", "some"], "--length"),
        (["--substrate", "fake", "--concurrency", "16"], "never 16 at once"),
        (["--substrate", "fake:max_trials=x"], "positive"),
        (["--substrate", "fake", "--substrate", "fake"], "two arms"),
        (["--substrate", "fake", "--evict", "dentries"], "evicted"),
        (["x.toml", "--trials", "3"], "exclude each other"),
        (["--resume"], "--output"),
    ],
)
def test_mistakes_are_told_and_nothing_is_begun(tmp_path: Path, words: list[str], hint: str) -> None:
    output = [] if words == ["--resume"] else ["--output", str(tmp_path / "r")]
    done = bench(*words, *output, code=2)
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_recording_is_replayed_whole_unless_a_length_is_named(tmp_path: Path) -> None:
    recordings = ROOT / "examples" / "trajectories"
    words = ("--substrate", "process", "--workload", recordings / "made_up.jsonl", "--workload", "T0", "--trials", "1")
    answer = bench_json(*words, "--output", tmp_path / "a")
    assert [each["length"] for each in answer["conditions"] if each["arm"] == "process"] == [5, 10]
    answer = bench_json(*words, "--length", "all", "--output", tmp_path / "b")
    assert [each["length"] for each in answer["conditions"] if each["arm"] == "process"] == [5, 1]


def test_a_quick_study_goes_on_as_one(tmp_path: Path) -> None:
    words = ("--quick", "--substrate", "fake", "--trials", "9", "--output", tmp_path / "r")
    assert bench_json(*words)["planned"] == 6
    assert bench_json(*words, "--resume")["trials"] == 6


def test_nothing_measured_is_a_failure(tmp_path: Path) -> None:
    answer = bench_json(
        "--substrate", "fake", "--trials", "1", "--time-limit", "0.001s", "--output", tmp_path / "r", code=1
    )
    assert (answer["trials"], answer["cut_short"]) == (0, "the time limit was reached")


def test_results_are_not_written_over(tmp_path: Path) -> None:
    flags = ("--substrate", "fake", "--trials", "1", "--output", tmp_path / "r")
    bench_json(*flags)
    assert "--resume" in bench(*flags, code=2).stderr
