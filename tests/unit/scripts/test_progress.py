"""Set-up says what it is doing, step by step, and fails as its commands do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.repository import ROOT

PYTHON = """#!/bin/sh
case "$2" in
    venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    pip) echo "Collecting numpy>=1.26 (from dutyfree)"; echo "noise"; echo "Installing collected packages: numpy, scipy"
         exit CODE ;;
esac
"""
"""In place of a real Python: makes an environment, and installs as pip prints it."""


def set_up(directory: Path, code: int) -> subprocess.CompletedProcess[str]:
    python, environment = directory / "python", directory / "environment"
    python.write_text(PYTHON.replace("CODE", str(code)))
    python.chmod(0o755)
    words = ["make", "--no-print-directory", f"PYTHON={python}", f"VENV={environment}", str(environment / "ready")]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


def test_set_up_shows_each_step_and_its_time(tmp_path: Path) -> None:
    done = set_up(tmp_path, 0)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("==> set-up: a virtual environment in ")
    assert lines[1].startswith("<== set-up: ")
    assert lines[1].endswith(" s")
    assert lines[2].startswith("==> set-up: compile Dutyfree; install it")
    assert lines[3:5] == ["    Collecting numpy>=1.26", "    installing 2 packages"]
    assert ": ok in " in lines[5]
    assert (tmp_path / "environment" / "ready").exists()


def test_a_set_up_that_fails_shows_everything_and_is_not_ready(tmp_path: Path) -> None:
    done = set_up(tmp_path, 3)
    assert done.returncode != 0
    assert "noise" in done.stderr
    assert "failed (3)" in done.stdout
    assert not (tmp_path / "environment" / "ready").exists()


@pytest.mark.parametrize("code", [0, 7])
def test_the_commands_code_is_passed_on(code: int) -> None:
    done = subprocess.run([ROOT / "scripts" / "progress", "sh", "-c", f"exit {code}"], capture_output=True)
    assert done.returncode == code
