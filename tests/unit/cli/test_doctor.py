"""`dutyfree doctor` and what `dutyfree` itself says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import dutyfree
from dutyfree.substrates import registry
from support.engines import OTHER_MACHINES
from support.engines import found as engines_found

DUTYFREE = [sys.executable, "-m", "dutyfree"]


@pytest.mark.timeout(400)
@OTHER_MACHINES
def test_doctor_tries_every_substrate() -> None:
    # With what `make engines` got ready: otherwise a disk would be built for machines in the user's own store.
    environment = {**os.environ, **engines_found()}
    done = subprocess.run([*DUTYFREE, "doctor", "--json"], capture_output=True, text=True, timeout=380, env=environment)
    told = json.loads(done.stdout)
    found = {each["name"]: each for each in told["substrates"]}
    assert set(found) == set(registry.names())
    assert found["process"]["works"]
    assert set(found["process"]["timings_ms"]) == {"create", "run", "destroy"}
    assert found["process"]["isolation"] == "none"
    assert done.returncode == (0 if found["cell"]["works"] else 1)
    for each in found.values():
        assert each["works"] or each["problem"]
    assert {"kernel", "cgroups", "user namespaces", "overlayfs", "user"} <= set(told["host"])


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
