"""Recordings run again: what was recorded there is seen here."""

from __future__ import annotations

import pytest

from dutyfree.errors import SubstrateUnavailable
from dutyfree.measure.workloads import catalogue
from dutyfree.measure.workloads.drawing import draw
from dutyfree.model import SandboxSpec
from dutyfree.substrates import registry
from support.repository import ROOT

EXAMPLES = ROOT / "examples" / "trajectories"


@pytest.mark.parametrize(
    ("name", "substrate"),
    [
        ("roman.traj.json", "cell"),
        ("roman.traj.json", "process"),
        ("roman.atif.json", "cell"),
        ("roman.atif.json", "process"),
        ("made_up.traj", "cell"),
        ("made_up.jsonl", "cell"),
        ("made_up.jsonl", "process"),
    ],
)
async def test_a_recording_runs_again(name: str, substrate: str) -> None:
    workload = catalogue.find(str(EXAMPLES / name))
    actions = draw(workload, len(workload.opening), seed=1)
    try:
        async with registry.load(substrate) as opened, await opened.create(SandboxSpec()) as sandbox:
            seen = [await sandbox.run(each.action) for each in actions]
    except SubstrateUnavailable as error:
        pytest.skip(f"replay on {substrate}: {error.message}")
    assert [each.expect.mismatch(was) for each, was in zip(actions, seen, strict=True)] == [""] * len(actions)
    if name == "made_up.traj":
        assert seen[-1].text == "one\ndeux\nthree\n"
