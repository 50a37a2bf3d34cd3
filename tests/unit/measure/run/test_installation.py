"""Two installations in one study: the other one's worker is asked strictly, and never outlives the study."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.cli.main import main
from dutyfree.errors import InvalidRequest, LinkFailed
from dutyfree.measure.design.against import pairs_of, two_installations, two_substrates
from dutyfree.measure.design.file import with_null
from dutyfree.measure.design.plan import PlannedTrial, plan
from dutyfree.measure.design.study import Arm, Condition, Grid, Study
from dutyfree.measure.results import layout
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.results.study_json import study_as_json, study_from_json
from dutyfree.measure.run.gathering import gather
from dutyfree.measure.run.installation import Installation, read_trial
from dutyfree.measure.workloads.drawing import draw
from support.shell import BENCH, bench_json

STUDY = Study("one", (Arm("fake", "fake"),), (Grid(1, ("T0",), lengths=(2,)),))
SLOW = """
import asyncio
from dutyfree.substrates.fake import sandbox
run = sandbox.FakeSandbox.run
async def slow_run(self, action):
    await asyncio.sleep(0.003)
    return await run(self, action)
sandbox.FakeSandbox.run = slow_run
"""


def interpreter(path: Path, *lines: str) -> Path:
    """A program that is called as Python is."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def installation(directory: Path, patch: str = "") -> Path:
    """The Python of an installation that is like this one, but for the patch."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(patch)
    return interpreter(directory / "python", f'PYTHONPATH={directory} exec {sys.executable} "$@"')


def test_a_faster_and_a_slower_installation(tmp_path: Path) -> None:
    flags = ("--substrate", "fake", "--length", "4", "--trials", "14")
    slow, same = installation(tmp_path / "slow", SLOW), installation(tmp_path / "same")
    answer = bench_json(*flags, "--against", slow, "--output", tmp_path / "a")
    verdicts = {each["metric"]: each["verdict"] for each in answer["comparison"]["differences"]}
    assert verdicts["action"] == verdicts["trajectory"] == "faster"
    assert answer["comparison"]["interleaved"]
    assert answer["comparison"]["regression"] is False
    assert answer["failed"] == 0
    # And the other way round: this installation is the slow one, because the environment is its own.
    done = subprocess.run(
        [*BENCH, *flags, "--against", str(same), "--no-report", "--quiet", "--output", str(tmp_path / "b")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "slow")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    assert "slower" in done.stdout
    assert "of interleaved trials" in done.stdout
    facts = load_results(tmp_path / "b").arms["fake-against"]
    assert facts["python"] == load_results(tmp_path / "b").host["python"]


HELLO = json.dumps({"protocol": 1, "dutyfree": "9", "python": "3", "location": "/x"})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["echo \"ModuleNotFoundError: No module named 'dutyfree'\" >&2; exit 1"], "has no dutyfree"),
        (['echo "No module named dutyfree.measure.run.worker" >&2; exit 1'], "too old"),
        ([f"echo '{HELLO.replace('1', '2', 1)}'; exec cat > /dev/null"], "is not compatible"),
        (["echo hello; exec cat > /dev/null"], "does not start a worker"),
        (["head -c 20000000 /dev/zero; exec cat > /dev/null"], "does not start a worker"),
        ([f"echo '{HELLO}'; read -r line; echo '[1]'; exec cat > /dev/null"], "broke the protocol"),
    ],
)
async def test_what_is_no_worker_is_named(tmp_path: Path, lines: list[str], expected: str) -> None:
    other = interpreter(tmp_path / "python", *lines)
    with pytest.raises((InvalidRequest, LinkFailed), match=expected):
        async with Installation(str(other)) as worker:
            await worker.open(STUDY, STUDY.arms[0], {}, 60)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--substrate", "fake", "--against", "/usr/bin/env"], "does not start a worker"),
        (["--against", "./no/such/python"], "cannot run"),
        (["--against", "none"], "there is no substrate"),
        (["--substrate", "fake", "--substrate", "process", "--against", "cell"], "compared with one other"),
        (["--against", sys.executable, "--concurrency", "4", "--trials", "32"], "one sandbox at a time"),
        (["--threshold", "10"], "--against"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    tmp_path: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words, "--output", str(tmp_path / "r")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_worker(pid: int) -> bool:
    try:
        return b"dutyfree.measure.run.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("end", ["ctrl-c", "kill the study", "kill a worker"])
def test_no_worker_outlives_its_study_and_a_dead_one_is_not_waited_for(tmp_path: Path, end: str) -> None:
    out = tmp_path / "r"
    trials = "25" if end == "kill a worker" else "10000"
    flags = ["--substrate", "process", "--against", sys.executable, "--trials", trials, "--length", "20"]
    child = subprocess.Popen(
        [*BENCH, *flags, "--json", "--no-report", "--output", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with child:
        journal = out / layout.JOURNAL
        wait_until(lambda: journal.exists() and b'"kind":"end"' in journal.read_bytes())
        workers = [pid for pid in children(child.pid) if is_worker(pid)]
        assert len(workers) == 2
        target, number = {
            "ctrl-c": (child.pid, signal.SIGINT),
            "kill the study": (child.pid, signal.SIGKILL),
            "kill a worker": (workers[0], signal.SIGKILL),
        }[end]
        os.kill(target, number)
        output, problems = child.communicate(timeout=60)
        wait_until(lambda: not any(map(alive, workers)))
    assert child.returncode == {"ctrl-c": 130, "kill the study": -9, "kill a worker": 3}[end], problems
    if end == "kill a worker":
        assert len(json.loads(output)["unavailable"]) == 1
        failed = [trial for trial in load_results(out).trials if not trial.completed]
        assert [trial.outcome for trial in failed] == ["infra-failed"]


async def test_a_trial_there_is_a_trial_of_the_same_actions() -> None:
    async with Installation(sys.executable) as worker:
        facts = await worker.open(STUDY, STUDY.arms[0], {}, 60)
        assert facts["substrate"] == "fake"
        with pytest.raises(InvalidRequest, match="not the same"):
            async with Installation(sys.executable) as other:
                await other.open(STUDY, STUDY.arms[0], {"T0": "another"}, 60)
        [block] = plan(STUDY)
        [planned] = block.trials
        names = [each.name for each in draw(gather(STUDY).workloads["T0"], 2, planned.seed)]
        done = await worker.run(planned, 0, "mark", names, 60)
    assert done.trial.completed
    assert [action.name for action in done.trial.actions] == names
    assert done.sandbox


BEGIN = layout.begin_record(PlannedTrial(3, 1, Condition("a", "T0", 1), 5), sequence=3, late_ns=0, at_s=1.0, evicted={})
SPAN = {"kind": "span", "trial": 3, "phase": "create", "name": "", "start_ns": 0, "end_ns": 5}
ACTION = {"kind": "action", "trial": 3, "name": "x", "of": "command", "start_ns": 5, "parts_ns": [1, 2, 1]}
END = {
    **{"kind": "end", "trial": 3, "outcome": "completed", "wall_ns": 10, "first_observation_ns": 9},
    **{"by_phase": {"create": 5, "dispatch": 1, "execute": 2, "observe": 1, "unattributed": 1}},
    **{"steps": {}, "failed_phase": None, "cause": "", "sandbox": "s"},
}
GOOD: dict[str, Any] = {"records": [ACTION, SPAN, END], "unenforced": None}


def test_a_good_answer() -> None:
    done = read_trial(GOOD, dict(BEGIN), ["x"])
    assert (done.trial.number, done.trial.sequence, done.trial.wall_ns, done.sandbox) == (3, 3, 10, "s")
    assert done.records == (ACTION, SPAN)
    extra = {"records": [ACTION, {**SPAN, "more": "x" * 1000}, END], "unenforced": None}
    assert read_trial(extra, dict(BEGIN), ["x"]).records == (ACTION, SPAN)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a["records"].pop(),
        lambda a: a["records"].append({"kind": "arm", "arm": "a", "facts": {}}),
        lambda a: a["records"].append(a["records"][1]),
        lambda a: a["records"][2].update(trial=4),
        lambda a: a["records"][2].update(wall_ns=11),
        lambda a: a["records"][2].update(sandbox="s" * 1000),
        lambda a: a["records"][0].update(name="y"),
        lambda a: a["records"][1].update(name="y" * 1000),
        lambda a: a.update(unenforced=["x"] * 1000),
        lambda a: a.pop("unenforced"),
    ],
)
def test_spoilt_answers_are_refused(spoil: Callable[[dict[str, Any]], object]) -> None:
    answer = copy.deepcopy(GOOD)
    spoil(answer)
    with pytest.raises(InvalidRequest):
        read_trial(answer, dict(BEGIN), ["x"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*END, "of", "name"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from([0, 1, 2]), st.sampled_from([*END, *ACTION, *SPAN]), JSON)
def test_any_answer_is_a_trial_or_refused(at: int, key: str, value: Any) -> None:
    answer = copy.deepcopy(GOOD)
    answer["records"][at][key] = value
    with contextlib.suppress(InvalidRequest):
        assert read_trial(answer, dict(BEGIN), ["x"]).trial.number == 3


def test_both_installations_are_in_every_block() -> None:
    arms = (Arm("cell", "cell"), Arm("process", "process"))
    study = Study("s", with_null(arms), (Grid(3, ("T0",)), Grid(3, ("T1",), arms=("cell",))))
    found = two_installations(study, "/new", "/old")
    assert found.pairs == pairs_of(found.study) == {"cell-against": "cell", "process-against": "process"}
    assert {arm.name: arm.python for arm in found.study.arms} == {
        **{"null": None, "cell": "/new", "process": "/new", "cell-against": "/old", "process-against": "/old"}
    }
    assert found.study.grids[1].arms == ("cell", "cell-against")
    for block in plan(found.study):
        ran = {trial.condition.arm for trial in block.trials}
        assert all((before in ran) == (after in ran) for before, after in found.pairs.items())
    assert study_from_json(json.loads(json.dumps(study_as_json(found.study))), "it") == found.study
    assert "python" not in study_as_json(study)["arms"][0]
    one = Study("s", with_null(arms[:1]), (Grid(3, ("T0",)),))
    assert two_substrates(one, Arm("docker", "docker")).pairs == {"docker": "cell"}
