"""`dutyfree doctor` and what `dutyfree` itself says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import dutyfree
from dutyfree.cli import doctor
from dutyfree.cli.main import build_parser, main
from dutyfree.substrates import registry
from support.shell import DUTYFREE


def test_doctor_is_readable_too() -> None:
    done = subprocess.run([*DUTYFREE, "doctor", "process"], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("host\n  kernel ")
    assert "\nprocess: works\n" in done.stdout
    assert "Traceback" not in done.stderr


def test_json_is_one_document() -> None:
    done = subprocess.run([*DUTYFREE, "doctor", "--json", "process"], capture_output=True, text=True, timeout=100)
    printed = json.loads(done.stdout)
    assert [each["name"] for each in printed["substrates"]] == ["process"]
    assert printed["not_tried"] == []


def chosen(*words: str) -> tuple[list[str], list[str]]:
    return doctor._chosen(build_parser("doctor").parse_args(["doctor", *words]))


def test_machines_are_tried_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in doctor.REMOTE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tried, not_tried = chosen()
    assert tried[0] == "cell"
    assert not_tried == ["hosted", "microvm", "vm"]
    assert not set(tried) & set(not_tried)
    everything, nothing = chosen("--all")
    assert set(everything) == {*tried, *not_tried}
    assert everything[-2:] == ["microvm", "vm"], "the slow ones last"
    assert nothing == []
    monkeypatch.setenv("E2B_API_URL", "http://127.0.0.1:1")
    assert "hosted" in chosen()[0]
    assert chosen("vm", "cell") == (["cell", "vm"], [])
    assert set(chosen("vm", "--all")[0]) == set(everything)


def test_machines_have_the_time_that_they_need() -> None:
    options = build_parser("doctor").parse_args(["doctor"])
    assert doctor._timeout_s("cell", options) == 60
    # An emulated machine boots for longer than a minute on a busy host, and the first one needs a disk to be built.
    assert doctor._timeout_s("vm", options) >= 600
    options = build_parser("doctor").parse_args(["doctor", "--timeout", "2m"])
    assert doctor._timeout_s("vm", options) == 120


def test_what_is_not_tried_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("process", "vm"))
    assert main(["doctor"]) == 0
    seen = capsys.readouterr().out
    assert "\nprocess: works\n" in seen
    assert "\nvm: not tried\n" in seen
    assert "dutyfree doctor vm" in seen


def test_no_answer_names_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "process", "--timeout", "0"]) == 1
    assert "no answer within 0 s; the step was: opening it" in capsys.readouterr().out


def test_facts_of_the_host_come_before_anything_slow_is_loaded() -> None:
    program = """
import sys
from dutyfree.cli.main import main
class Out:
    encoding = "utf-8"
    def write(self, text):
        if text.startswith("host"):
            slow = [each for each in ("asyncio", "dutyfree.model", "importlib.metadata") if each in sys.modules]
            sys.__stdout__.write(f"{slow}\\n")
    def flush(self): pass
sys.stdout = Out()
main(["doctor"])
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"[]\n"
        child.terminate()


def test_version() -> None:
    done = subprocess.run([*DUTYFREE, "--version"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"dutyfree {dutyfree.__version__}\n", 0)


def test_no_command_is_wrong_usage() -> None:
    assert subprocess.run(DUTYFREE, capture_output=True).returncode == 2


def test_help_needs_no_event_loop() -> None:
    program = "import sys; from dutyfree.cli.main import build_parser; build_parser(); print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
