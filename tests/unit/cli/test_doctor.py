"""`dutyfree doctor` and what `dutyfree` itself says."""

from __future__ import annotations

import subprocess
import sys

import dutyfree
from support.shell import DUTYFREE


def test_doctor_is_readable_too() -> None:
    done = subprocess.run([*DUTYFREE, "doctor", "process"], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("host\n  kernel ")
    assert "\nprocess: works\n" in done.stdout
    assert "Traceback" not in done.stderr


def test_version() -> None:
    done = subprocess.run([*DUTYFREE, "--version"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (f"dutyfree {dutyfree.__version__}\n", 0)


def test_no_command_is_wrong_usage() -> None:
    assert subprocess.run(DUTYFREE, capture_output=True).returncode == 2


def test_help_needs_no_event_loop() -> None:
    program = "import sys; from dutyfree.cli.main import build_parser; build_parser(); print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
