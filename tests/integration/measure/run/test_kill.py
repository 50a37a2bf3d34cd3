"""A study that is killed at random moments, and gone on with: complete, nothing twice, nothing lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from dutyfree.measure.results import layout
from dutyfree.measure.results.directory import load_results

BENCH = [sys.executable, "-m", "dutyfree", "bench", "--quiet", "--json", "--no-report"]
STUDY = """
[[arm]]
substrate = "process"
[[arm]]
substrate = "fake"
[[grid]]
trials = {trials}
workloads = ["T0"]
lengths = [1, 10]
[[grid]]
trials = 16
workloads = ["T0"]
lengths = [2]
concurrency = [2]
"""


def begin(study: Path, output: Path) -> subprocess.Popen[bytes]:
    resume = ["--resume"] if (output / layout.STUDY).exists() else []
    return subprocess.Popen([*BENCH, str(study), "--output", str(output), *resume], stdout=subprocess.PIPE)


def kill_at(process: subprocess.Popen[bytes], journal: Path, delay_s: float) -> bool:
    """Kill it some time after it has begun to write; whether it was still alive then."""
    before = journal.stat().st_size if journal.exists() else 0
    end_s = time.monotonic() + 30
    while process.poll() is None and (not journal.exists() or journal.stat().st_size <= before):
        assert time.monotonic() < end_s, "it does not begin"
        time.sleep(0.005)
    time.sleep(delay_s)
    was_alive = process.poll() is None
    process.kill()
    process.communicate()
    return was_alive


def ended(output: Path) -> list[bytes]:
    """The records of trials that are over, as they stand in the file."""
    lines = (output / layout.JOURNAL).read_bytes().splitlines(keepends=True)
    return [line for line in lines if b'"kind":"end"' in line and line.endswith(b"\n")]


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_studies_lose_the_running_trial_and_nothing_else(tmp_path: Path, kills: int) -> None:
    study, output = tmp_path / "study.toml", tmp_path / "results"
    study.write_text(STUDY.format(trials=15 * kills))
    moments = random.Random(kills)
    kept: list[bytes] = []
    killed = 0
    while killed < kills:
        if not kill_at(begin(study, output), output / layout.JOURNAL, moments.uniform(0.0, 0.4)):
            break
        killed += 1
        if (output / layout.STUDY).exists():
            now = ended(output)
            assert now[: len(kept)] == kept, "what was over stays over"
            assert len(load_results(output).trials) == len(now)
            kept = now
    assert killed == kills, "the study is too short for as many kills"
    last = begin(study, output)
    told, _ = last.communicate(timeout=100)
    assert last.returncode == 0
    results = load_results(output)
    numbers = Counter(json.loads(line)["trial"] for line in ended(output))
    assert set(numbers) == set(range(results.planned))
    assert set(numbers.values()) == {1}
    assert len(results.trials) == results.planned == json.loads(told)["trials"]
    assert results.cut_short == ""
    # A machine that has other things to do may be too slow for those that arrive at once; that is counted, too.
    assert {trial.cause.partition(":")[0] for trial in results.trials} <= {"", "overload"}
