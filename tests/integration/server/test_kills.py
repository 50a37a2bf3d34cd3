"""A server whose gateways, node and supervisor are killed, a few times; `benchmarks/server_kills.py` does it often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.repository import ROOT

pytestmark = pytest.mark.xdist_group("server-kills")  # one run for all

KILLS = 3
HELD = 15
AGAIN_S = 2.0


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the benchmark saw, by what was killed."""
    command = [sys.executable, "benchmarks/server_kills.py", "--json", "--kills", str(KILLS), "--sandboxes", str(HELD)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return {row.pop("what"): row for row in map(json.loads, done.stdout.splitlines())}


def is_idle() -> bool:
    """Whether times on this machine mean something."""
    return os.getloadavg()[0] <= (os.cpu_count() or 1)


def check_clients(*rows: dict[str, Any]) -> None:
    for row in rows:
        assert row["done"] > 0
        assert row["untyped"] == {}
        assert row["hangs"] == 0


@pytest.mark.slow
def test_gateways_end_no_sandbox_and_repeat_no_action(seen: dict[str, Any]) -> None:
    row = seen["gateways killed"]
    assert row["died"] == 0
    assert (row["twice"], row["lost"], row["unknown"]) == (0, 0, 0)
    assert row["native"]["errors"] == {}
    check_clients(row["native"], row["sdk"])
    assert row["serving_again_s"] < (AGAIN_S if is_idle() else 15)


@pytest.mark.slow
def test_every_lease_of_a_killed_node_is_accounted_for(seen: dict[str, Any]) -> None:
    row = seen["node killed"]
    assert row["wrong"] == {}
    assert row["leases"] >= KILLS * HELD
    check_clients(row["native"], row["sdk"])
    assert row["serving_again_s"] < (AGAIN_S if is_idle() else 15)


@pytest.mark.slow
def test_nothing_is_left_when_the_supervisor_was_killed(seen: dict[str, Any]) -> None:
    assert seen["supervisor killed"]["left"] == 0
    assert seen["left behind"]["things"] == []
