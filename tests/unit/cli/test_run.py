"""`dutyfree run`, as a shell sees it."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dutyfree
from dutyfree import codec
from support.shell import DUTYFREE

RUN = [*DUTYFREE, "run", "--quiet", "--substrate", "process"]


def run(*words: str, stdin: bytes = b"", timeout_s: float = 30) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RUN, *words], input=stdin, capture_output=True, timeout=timeout_s)


def test_output_input_and_exit_code_pass_through() -> None:
    done = run("--", "sh", "-c", "cat; echo err >&2; exit 7", stdin=b"in\x00\xff")
    assert (done.stdout, done.stderr, done.returncode) == (b"in\x00\xff", b"err\n", 7)


def test_the_separator_may_be_left_out() -> None:
    assert run("echo", "-n", "--version").stdout == b"--version"


def test_output_comes_while_the_command_runs() -> None:
    child = subprocess.Popen(
        [*RUN, "--", "sh", "-c", "echo first; read line; echo $line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"first\n"
    child.stdin.write(b"second\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"second\n"
    child.stdin.close()
    assert child.wait(10) == 0
    child.stdout.close()


def test_a_command_that_ends_does_not_wait_for_its_input() -> None:
    child = subprocess.Popen([*RUN, "--", "true"], stdin=subprocess.PIPE)
    assert child.wait(20) == 0
    assert child.stdin is not None
    child.stdin.close()


def test_more_input_than_fits_anywhere() -> None:
    data = bytes(range(256)) * 20_000
    assert run("--", "cat", stdin=data).stdout == data
    assert run("--", "head", "-c", "3", stdin=data).stdout == data[:3]


def test_a_signal_becomes_128_plus_its_number() -> None:
    assert run("--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_a_timeout_becomes_124() -> None:
    start = time.monotonic()
    assert run("--timeout", "0.3", "--", "sleep", "30").returncode == 124
    assert time.monotonic() - start < 10


def test_a_command_that_is_not_there() -> None:
    done = run("--", "no-such-command-anywhere")
    assert done.returncode == 127
    assert b"no-such-command-anywhere" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["no-such-a && no-such-b"], "'no-such-a && no-such-b'"),
        (["echo hi"], "'echo hi'"),
        (["no-such-a|b", "c"], "'no-such-a|b c'"),
    ],
)
def test_a_shell_line_in_place_of_a_program_hints_at_a_shell(words: list[str], line: str) -> None:
    done = subprocess.run([*DUTYFREE, "run", "--substrate", "process", "--", *words], capture_output=True, text=True)
    assert done.returncode == 127
    hint = f"hint: this is a line for a shell, not a program's name: dutyfree run -- sh -c {line}\n"
    assert done.stderr.endswith(hint)


def test_a_program_that_is_not_there_gets_no_hint_at_a_shell() -> None:
    words = ["--substrate", "process", "--", "no-such-command-anywhere"]
    assert b"hint" not in subprocess.run([*DUTYFREE, "run", *words], capture_output=True).stderr


def test_a_store_that_does_not_exist_is_refused_and_not_made(tmp_path: Path) -> None:
    done = run("--store", str(tmp_path / "nope" / "x"), "--", "true")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert b"error: there is no image store at " in done.stderr
    assert b"hint: `dutyfree image build`" in done.stderr


def test_auto_says_of_each_substrate_why_it_was_passed_over(tmp_path: Path) -> None:
    known = {"acquire_s": 1, "action_overhead_s": 0, "slowdown": 1, "memory_bytes": 0, "failure_rate": 0}
    known |= {"emulated": False, "options": {}, "isolation": "none"}
    found = [{"name": "gone", "substrate": "nowhere", **known}, {"name": "here", "substrate": "process", **known}]
    advice = {"kind": "advice", "evidence": [{"candidate": each} for each in found]}
    (tmp_path / "advice.json").write_text(json.dumps(advice))
    options = ["--option", "trust=trusted", "--option", f"advice={tmp_path / 'advice.json'}"]
    done = subprocess.run([*DUTYFREE, "run", "--substrate", "auto", *options, "--", "true"], capture_output=True)
    assert done.returncode == 0
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("auto: here is the only one")
    assert lines[1].startswith("auto: passed over gone: there is no substrate 'nowhere'")


def test_env_and_cwd() -> None:
    done = run("--env", "A=1", "--env", "PATH", "--cwd", "/usr", "--", "sh", "-c", "echo $A $PWD")
    assert done.stdout == b"1 /usr\n"


def test_json_holds_the_whole_observation() -> None:
    done = run("--json", "--", "sh", "-c", "printf 'a\\377'; echo err >&2; exit 3")
    told = json.loads(done.stdout)
    assert done.returncode == 3
    assert (told["exit_code"], told["signal"], told["stdout"], told["stderr"]) == (3, None, "a\ufffd", "err\n")
    assert base64.b64decode(told["stdout_base64"]) == b"a\xff"
    assert "stderr_base64" not in told
    assert told["execute_ms"] > 0
    assert [span["phase"] for span in told["spans"]] == ["dispatch", "execute", "observe"]
    assert {"what", "reason"} == set(told["unenforced"][0])
    assert codec.OBSERVATION.decode(told).stdout == b"a\xff"


def test_what_is_not_enforced_is_one_warning_line() -> None:
    done = subprocess.run([*DUTYFREE, "run", "--substrate", "process", "--", "true"], capture_output=True)
    assert done.returncode == 0
    assert done.stderr.startswith(b"warning: not enforced here: ")
    assert done.stderr.count(b"\n") == 1


def test_a_limit_that_was_reached_is_named() -> None:
    words = ["--substrate", "process", "--timeout", "0.3", "--", "sleep", "30"]
    done = subprocess.run([*DUTYFREE, "run", *words], capture_output=True, stdin=subprocess.DEVNULL)
    assert done.stderr.endswith(b"warning: the timeout of 0.3 s was reached (--timeout)\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], b"no command"),
        (["--memory", "many", "--", "true"], b"size"),
        (["--memory", "1k", "--", "true"], b"memory_bytes"),
        (["--pids", "-1", "--", "true"], b"number"),
        (["--env", "NO_SUCH_VARIABLE_HERE", "--", "true"], b"NO_SUCH_VARIABLE_HERE"),
        (["--cwd", "/no/such/directory", "--", "true"], b"directory"),
        (["--timeout", "0", "--", "true"], b"timeout"),
        (["--substrate", "nowhere", "--", "true"], b"nowhere"),
    ],
)
def test_wrong_usage_is_2_and_says_why(words: list[str], said: bytes) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert b"error: " in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_an_error_is_json_too() -> None:
    done = run("--substrate", "nowhere", "--json", "--", "true")
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["kind"], told["party"]) == (2, "InvalidRequest", "caller")
    assert type(codec.ERROR.decode(told)) is dutyfree.InvalidRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_the_commands_own(number: signal.Signals, tmp_path: Path) -> None:
    child, _ = start_trapping("exit 9", tmp_path)
    child.send_signal(number)
    assert child.wait(10) == 9


def test_the_second_signal_kills(tmp_path: Path) -> None:
    child, heard = start_trapping("", tmp_path)
    child.send_signal(signal.SIGINT)
    wait_for(heard)
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 128 + signal.SIGKILL


def test_a_reader_that_goes_away_ends_the_command() -> None:
    child = subprocess.Popen(
        [*RUN, "--", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"y\n"
    child.stdout.close()
    assert child.wait(10) == 128 + signal.SIGPIPE
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()


def start_trapping(reaction: str, directory: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A command that answers INT and TERM with `reaction`, and leaves a file when it hears one."""
    ready, heard = directory / "ready", directory / "heard"
    script = f"trap 'touch {heard}; {reaction}' INT TERM; touch {ready}; while :; do sleep 0.05; done"
    child = subprocess.Popen(
        [*RUN, "--", "sh", "-c", script], stdin=subprocess.DEVNULL, preexec_fn=as_in_the_foreground
    )
    wait_for(ready)
    return child, heard


def as_in_the_foreground() -> None:
    """Undo what a shell does for the jobs that it starts in the background, this test run perhaps among them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


END = """
import atexit, sys, threading
from dutyfree.cli.main import main

atexit.register(print, "registered")
print("first", end=" ")
if sys.argv.pop() == "thread":
    threading.Thread(target=lambda: (threading.main_thread().join(), print("late"))).start()
main()
"""


@pytest.mark.parametrize(("how", "last"), [("alone", ["registered"]), ("thread", ["late", "registered"])])
def test_the_end_of_the_process_flushes_and_waits_for_threads(how: str, last: list[str]) -> None:
    words = [sys.executable, "-c", END, "completion", "bash", how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("first ")
    assert lines[-len(last) :] == last
