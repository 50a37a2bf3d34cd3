"""A probe that passes where there is no wall proves nothing: without isolation each of them fails, or says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Isolation
from dutyfree.substrates import load
from dutyfree.testing.isolation import PROBES, CannotCompile, Outcome, Probe, Prober, compile_program

WALLS = [probe for probe in PROBES if probe.level > Isolation.NONE and not probe.recorded]
WEAK_EVIDENCE = "weak evidence"
"""The mark of a result whose operation the host itself refuses, too."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_program(tmp_path_factory.mktemp("probe"))
    except CannotCompile as error:
        pytest.skip(f"isolation probes: no probe program: {error}")


def test_ids_are_unique() -> None:
    ids = [probe.id for probe in PROBES]
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(os.geteuid() != 0, reason="the machine itself refuses an ordinary user most of this")
@pytest.mark.parametrize("probe", [probe for probe in WALLS if not probe.unsafe], ids=lambda probe: probe.id)
async def test_without_a_wall_the_probe_fails(probe: Probe, program: Path) -> None:
    try:
        async with Prober(load("process"), program, beyond_claim=True) as prober:
            result = await prober.run(probe)
    except SubstrateUnavailable as error:
        pytest.skip(f"isolation probes on process: {error}")
    if result.outcome is Outcome.NOT_RUN or WEAK_EVIDENCE in result.reason:
        pytest.skip(f"{probe.id} cannot be shown to fail here: {result.reason}")
    assert result.outcome is Outcome.FAILED, result.reason


@pytest.mark.parametrize("probe", [probe for probe in WALLS if probe.unsafe], ids=lambda probe: probe.id)
async def test_without_a_wall_a_harmful_probe_is_refused(probe: Probe, program: Path) -> None:
    try:
        async with Prober(load("process"), program, beyond_claim=True) as prober:
            result = await prober.run(probe)
    except SubstrateUnavailable as error:
        pytest.skip(f"isolation probes on process: {error}")
    assert result.outcome is Outcome.NOT_RUN
    assert "would harm the host" in result.reason
