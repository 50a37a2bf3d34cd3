"""Ten times what a server can give, for some seconds; `benchmarks/server_overload.py` does it for a minute."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.repository import ROOT

ALLOWED = {
    "http: 201",
    "http: 429",
    "native: leased",
    "native: CapacityError",
    "another owner: leased",
    "not sent: too many under way",
}
GROWTH_MIB = 48


@pytest.mark.slow
def test_more_requests_than_can_be_served_get_clear_refusals() -> None:
    command = [sys.executable, "benchmarks/server_overload.py", "--json", "--seconds", "4", "--sandboxes", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    outcomes = set(next(row for row in rows if "times that" in row["what"])) - {"what"}
    assert outcomes <= ALLOWED
    assert {"http: 429", "native: leased", "native: CapacityError", "another owner: leased"} <= outcomes
    before, after = (row for row in rows if row["what"].startswith("memory"))
    for process in ("node", "gateway"):
        assert after[process] - before[process] < GROWTH_MIB
    assert rows[-1]["of both owners"] == 0
