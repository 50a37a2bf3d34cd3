"""The isolation probes on the substrates that can run here; the report names what was not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Isolation
from dutyfree.substrates import load
from dutyfree.testing.isolation import PROBES, CannotCompile, Outcome, Probe, Prober, compile_program

CASES = [("process", probe) for probe in PROBES if probe.level is Isolation.NONE] + [
    ("cell", probe) for probe in PROBES
]
"""A substrate without walls is only asked to let ordinary work happen."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_program(tmp_path_factory.mktemp("probe"))
    except CannotCompile as error:
        pytest.skip(f"isolation probes: no probe program: {error}")


@pytest.mark.parametrize(("substrate", "probe"), CASES, ids=lambda value: getattr(value, "id", value))
async def test_promise_is_kept(substrate: str, probe: Probe, program: Path) -> None:
    try:
        async with Prober(load(substrate), program) as prober:
            result = await prober.run(probe)
    except SubstrateUnavailable as error:
        pytest.skip(f"isolation probes on {substrate}: {error}")
    if result.outcome is Outcome.NOT_RUN:
        pytest.skip(f"{substrate}: {result.id}: {result.reason}")
    assert result.outcome is not Outcome.FAILED, f"{result.promise}: {result.reason}"
