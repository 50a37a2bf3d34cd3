"""Recordings of agents as workloads: every format, and whatever else a file may hold."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads.actions import MAX_THINK_S
from dutyfree.measure.workloads.replay import FORMATS, load_recording
from dutyfree.measure.workloads.replay.kinds import kind_of
from dutyfree.measure.workloads.replay.loading import MAX_FILE_BYTES
from dutyfree.measure.workloads.replay.recording import MAX_COMMAND_BYTES, MAX_STEPS
from dutyfree.measure.workloads.workload import ActionKind, Expectation, Workload
from dutyfree.model import Action
from support.repository import ROOT

EXAMPLES = ROOT / "examples" / "trajectories"


def load(directory: Path, document: Any, format_name: str | None = None) -> Workload:
    path = directory / "run.traj.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load_recording(path, format_name)


def lines(workload: Workload) -> list[str]:
    return [each.action.command[2] for each in workload.opening]


def codes(workload: Workload) -> list[int | None]:
    return [each.expect.exit_code for each in workload.opening]


def test_a_recording_of_mini_swe_agent() -> None:
    workload = load_recording(EXAMPLES / "roman.traj.json")
    assert workload.name == "roman"
    assert workload.title == "12 commands recorded by mini-swe-agent"
    assert codes(workload) == [0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, None]
    assert lines(workload)[3] == "python3 -m unittest -v test_roman"
    assert [each.kind.value for each in workload.opening][:5] == ["inspect", "edit", "edit", "test", "inspect"]
    assert workload.opening[0].think_s == 0
    assert all(0.3 < each.think_s < 5 for each in workload.opening[1:])
    assert not workload.menu


def test_the_same_run_as_harbor_converts_it() -> None:
    workload = load_recording(EXAMPLES / "roman.atif.json")
    original = load_recording(EXAMPLES / "roman.traj.json")
    assert workload.title == "12 commands recorded by atif"
    assert lines(workload) == lines(original)
    assert codes(workload) == codes(original)


def test_made_up_recordings() -> None:
    workload = load_recording(EXAMPLES / "made_up.traj")
    assert workload.title == "4 commands recorded by swe-agent; left out: 2 tools of the agent's own"
    assert [each.action.cwd for each in workload.opening] == [None, "/tmp/words", "/tmp/words", "/tmp/words"]
    assert codes(workload) == [None] * 4
    plain = load_recording(EXAMPLES / "made_up.jsonl")
    assert [each.name for each in plain.opening] == ["001-mkdir", "002-cat", "count", "004-cat", "005-rm"]
    assert plain.opening[1].action == Action(("cat", "notes/a.txt"))
    assert plain.opening[1].expect == Expectation(0, ("first",))
    assert plain.opening[4].expect == Expectation(None)
    assert [each.think_s for each in plain.opening] == [0, 1.5, 0.5, 0, 0]


def test_the_first_generation_of_mini_swe_agent(tmp_path: Path) -> None:
    def answer(line: str, fence: str = "bash") -> dict[str, str]:
        return {"role": "assistant", "content": f"THOUGHT: so.\n\n```{fence}\n{line}\n```"}

    def told(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    messages = [
        {"role": "system", "content": "write one ```bash\nblock\n```"},
        told("do it ```bash\nnever run\n```"),
        answer("ls -la"),
        told("<returncode>0</returncode>\n<output>\n<returncode>7</returncode></output>"),
        answer("cat missing &&\ntrue", fence="mswea_bash_command"),
        told("<returncode>1</returncode>\n<output></output>"),
        {"role": "assistant", "content": "```bash\none\n```\n```bash\ntwo\n```"},
        told("Please always provide EXACTLY ONE action"),
        answer("sleep 1000"),
        told("The last command <command>sleep 1000</command> timed out and has been killed."),
        answer("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ]
    workload = load(tmp_path, messages)
    assert lines(workload) == ["ls -la", "cat missing &&\ntrue", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    assert codes(workload) == [0, 1, None]
    assert workload.title.endswith("left out: 1 did not end by themselves")


def test_several_commands_in_one_answer(tmp_path: Path) -> None:
    def told(code: int, at_s: float) -> dict[str, Any]:
        return {"role": "tool", "content": "", "extra": {"returncode": code, "timestamp": at_s}}

    actions = [{"command": "ls"}, {"command": "false"}, {"command": "skipped"}]
    messages = [
        {"role": "user", "content": "", "extra": {"timestamp": 10}},
        {"role": "assistant", "content": "", "extra": {"actions": actions, "timestamp": 12.5}},
        *[told(0, 13.0), told(1, 13.5), told(-1, 14.0)],
        {"object": "response", "output": [], "extra": {"actions": [{"command": "pwd"}], "timestamp": 1e9}},
        {"type": "function_call_output", "output": "", "extra": {"returncode": 0, "timestamp": 1}},
    ]
    settings = {"environment": {"cwd": "/testbed", "env": {"PAGER": "cat", "BAD": 3, "A=B": "c"}}}
    workload = load(tmp_path, {"info": {"config": settings}, "messages": messages})
    assert lines(workload) == ["ls", "false", "pwd"]
    assert codes(workload) == [0, 1, 0]
    assert [each.think_s for each in workload.opening] == [2.5, 0, MAX_THINK_S]
    assert {each.action.cwd for each in workload.opening} == {"/testbed"}
    assert workload.opening[0].action.env == {"PAGER": "cat"}


def test_directories_of_both_generations_of_swe_agent(tmp_path: Path) -> None:
    def step(action: str, state: Any, **more: Any) -> dict[str, Any]:
        return {"action": action, "observation": "", "state": state, **more}

    new = [step("cd src\n", {"working_dir": "/r/src"}), step("ls\n", {"working_dir": "/r/src"})]
    assert [each.action.cwd for each in load(tmp_path, {"trajectory": new}).opening] == [None, "/r/src"]
    old = [step("cd src\n", '{"working_dir": "/r"}'), step("ls\n", '{"working_dir": "/r/src"}'), step("pwd", "{")]
    assert [each.action.cwd for each in load(tmp_path, {"trajectory": old}).opening] == ["/r", "/r/src", "/r/src"]
    shown = [step("ls", {}, is_demo=True), step("pwd", {}), step("edit 1:2\nx\nend_of_edit", {}), step("", {})]
    workload = load(tmp_path, {"history": shown})
    assert lines(workload) == ["pwd"]
    assert "1 tools of the agent's own" in workload.title


def test_the_tools_and_times_of_atif(tmp_path: Path) -> None:
    def call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
        return {"tool_call_id": f"c{number}", "function_name": name, "arguments": arguments}

    calls = [
        call("Bash", 1, command="ls"),
        call("shell", 2, command=["bash", "-lc", "ls | wc"], workdir="/repo"),
        call("exec_command", 3, cmd=["grep", "a b", "f"]),
        call("bash_command", 4, keystrokes="make\n", duration=1.0),
        call("bash_command", 5, keystrokes="C-c"),
        call("write_file", 6, path="a", content="b"),
    ]
    results = [
        {"source_call_id": "c3", "content": "", "extra": {"exit_code": 1}},
        {"source_call_id": "c1", "content": "<returncode>2</returncode> told"},
    ]
    steps = [
        {"step_id": 1, "source": "user", "message": "", "timestamp": "2025-01-01T00:00:00Z"},
        {"step_id": 2, "source": "agent", "is_copied_context": True, "tool_calls": calls},
        {
            "step_id": 3,
            "source": "agent",
            "timestamp": "2025-01-01T00:00:04.5+00:00",
            "tool_calls": calls,
            "observation": {"results": results},
        },
    ]
    workload = load(tmp_path, {"schema_version": "ATIF-v1.7", "agent": {}, "steps": steps})
    assert lines(workload) == ["ls", "ls | wc", "grep 'a b' f", "make"]
    assert codes(workload) == [2, None, 1, None]
    assert [each.think_s for each in workload.opening] == [4.5, 0, 0, 0]
    assert workload.opening[1].action.cwd == "/repo"
    assert "2 tools of the agent's own" in workload.title


def test_the_documentation_shows_what_is_read(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "replay.md").read_text()
    workload = load(tmp_path, re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    assert [each.name for each in workload.opening] == ["001-git", "002-python3"]
    assert workload.opening[1].expect == Expectation(1, ("1 failed",))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ls -la", ActionKind.INSPECT),
        ("cd /testbed && grep -rn 'x' . 2>/dev/null | head", ActionKind.INSPECT),
        ("sed -n '1,20p' a.py", ActionKind.INSPECT),
        ("git diff", ActionKind.INSPECT),
        ("sed -i 's/a/b/' a.py", ActionKind.EDIT),
        ("cat > a.py <<'EOF'\nimport pytest\nEOF", ActionKind.EDIT),
        ("git apply fix.patch", ActionKind.EDIT),
        ("cd /testbed && python -m pytest -q tests", ActionKind.TEST),
        ("./manage.py test 2>&1 | tail", ActionKind.TEST),
        ("pip install -e .", ActionKind.COMMAND),
        ("python reproduce.py", ActionKind.COMMAND),
    ],
)
def test_kinds_are_guessed(line: str, kind: ActionKind) -> None:
    assert kind_of(line) is kind


@pytest.mark.parametrize(
    ("document", "format_name", "what"),
    [
        ({"a": 1}, None, "no format of recordings"),
        ([], None, "no format of recordings"),
        ("3", None, "no format of recordings"),
        ("", None, "nothing in it went to a shell"),
        ({"trajectory": []}, None, "nothing in it went to a shell"),
        ({"trajectory": []}, "atif", "not a recording in the format 'atif'"),
        ({"trajectory": []}, "tap", "no format 'tap'"),
        ('{"run": "ls"}\n{"run": ', None, "line 2: not JSON"),
        ('{"run": "ls"}\n[]', None, "line 2: a table is wanted"),
        ('{"run": "ls", "exit": 0}', None, "line 1: there is no key 'exit'"),
        ('{"run": "ls", "think_s": -1}', None, "think_s: a positive number"),
        ('{"run": "ls", "think_s": Infinity}', None, "think_s: a positive number"),
        ('{"run": "ls", "think_s": 1e5}', None, "think_s: at most 3600 seconds"),
        ('{"run": 3}', None, "line 1, run: a string is wanted"),
        ('{"run": []}', None, "line 1, run: the command is empty"),
        ('{"run": "\\ud800"}', None, "line 1: not JSON"),
        ("[" * 100_000, None, "not JSON"),
    ],
)
def test_what_is_refused(tmp_path: Path, document: Any, format_name: str | None, what: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(tmp_path, document, format_name)
    assert what in caught.value.message


def test_sizes_are_bounded(tmp_path: Path) -> None:
    many = "\n".join(['{"run": "ls"}'] * (MAX_STEPS + 1))
    with pytest.raises(InvalidRequest, match="more than"):
        load(tmp_path, many)
    steps = [{"action": "ls"}] * (MAX_STEPS + 1)
    with pytest.raises(InvalidRequest, match="more than"):
        load(tmp_path, {"trajectory": steps})
    long = [{"action": "x" * (MAX_COMMAND_BYTES + 1)}, {"action": "a\0b"}, {"action": "\ud800"}, {"action": "ls"}]
    workload = load(tmp_path, {"trajectory": long})
    assert lines(workload) == ["ls"]
    assert "3 more than a shell can be given" in workload.title
    with (tmp_path / "huge.traj").open("wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidRequest, match="at most"):
        load_recording(tmp_path / "huge.traj")
    with pytest.raises(InvalidRequest, match="regular file"):
        load_recording("/dev/zero")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        load_recording(tmp_path / "bytes")


WORDS = """
role assistant user tool content extra actions command timestamp returncode exception_info info config environment cwd
env messages trajectory history action state working_dir tool_calls function name is_demo schema_version ATIF-v1.7 steps
source agent observation results source_call_id arguments keystrokes function_name run expect think_s stdin timeout_s
"""
words = st.sampled_from(WORDS.split())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=6),
    max_leaves=25,
)


@given(values, st.sampled_from([None, *FORMATS]))
def test_whatever_it_holds_it_becomes_a_workload_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, document: Any, format_name: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    for head in ({}, {"schema_version": "ATIF-v1.7"}):
        whole = {**head, **document} if isinstance(document, dict) else document
        path.write_text(json.dumps(whole))
        try:
            workload = load_recording(path, format_name)
        except InvalidRequest:
            continue
        assert workload.opening
        assert all(0 <= each.think_s <= MAX_THINK_S for each in workload.opening)


def test_the_time_to_read_one_grows_with_its_length_alone(tmp_path: Path) -> None:
    """Not with its square: these are messages without a command, of which no bound says how many there may be."""
    path = tmp_path / "long.traj.json"
    messages = [{"role": "assistant"}] * 300_000 + [{"role": "assistant", "content": "```bash\nls\n```"}]
    path.write_text(json.dumps({"messages": messages, "info": {}}))
    start_s = time.process_time()
    assert len(load_recording(path).opening) == 1
    assert time.process_time() - start_s < 10
