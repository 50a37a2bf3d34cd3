"""`dutyfree.local("auto")`: what works here, has the wall, and costs the least."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dutyfree
from dutyfree.choose.automatic import PRIORS, Choice
from dutyfree.choose.trust import Trust
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.model import Isolation
from dutyfree.substrates.process import ProcessSubstrate


async def test_a_trusted_rollout_gets_what_is_cheapest() -> None:
    async with dutyfree.local("auto", trust="trusted", expected_work_s=1) as host:
        assert host.substrate == "process"
        assert "process" in host.why
        async with host.lease() as box:
            assert (await box.run("echo hi")).text == "hi\n"


def advice(directory: Path, *candidates: tuple[str, str, str, float]) -> Path:
    """A file with candidates: name, substrate, wall, and the time to get one."""
    known = {"action_overhead_s": 0, "slowdown": 1, "memory_bytes": 0, "failure_rate": 0}
    evidence = [
        {"candidate": {"name": name, "substrate": substrate, "isolation": wall, "acquire_s": acquire_s, **known}
         | {"emulated": False, "options": {}}}
        for name, substrate, wall, acquire_s in candidates
    ]  # fmt: skip
    path = directory / "advice.json"
    path.write_text(json.dumps({"kind": "advice", "evidence": evidence}))
    return path


async def test_what_does_not_work_here_is_passed_over(tmp_path: Path) -> None:
    path = advice(tmp_path, ("gone", "nothing-of-this-name", "none", 0.1), ("here", "process", "none", 1.0))
    async with dutyfree.local("auto", trust="trusted", advice=path) as host:
        assert host.why.startswith("here")


async def test_every_candidate_has_its_reason(tmp_path: Path) -> None:
    path = advice(
        tmp_path,
        ("gone", "nothing-of-this-name", "container", 0.1),
        ("weak", "process", "none", 0.2),
        ("here", "process", "container", 1.0),
        ("slow", "process", "container", 2.0),
    )
    async with dutyfree.local("auto", trust="model", advice=path, expected_work_s=1) as host:
        assert host.decision is not None
        reasons = host.decision.passed_over
        assert set(reasons) == {"gone", "weak", "slow"}
        assert "there is no substrate 'nothing-of-this-name'" in reasons["gone"]
        assert reasons["weak"] == "its wall is none; model takes namespace or stronger"
        assert reasons["slow"] == "costs 3.000, not 2.000"
        assert all(f"{name}: {reason}" in host.why for name, reason in reasons.items())


async def test_a_host_that_was_chosen_by_the_caller_has_no_decision() -> None:
    async with dutyfree.local("process") as host:
        assert (host.decision, host.why) == (None, "")


async def test_an_engine_without_an_image_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessSubstrate, "has_default_image", False)
    path = advice(tmp_path, ("weak", "process", "none", 0.1), ("bare", "process", "user-kernel", 1.0))
    with pytest.raises(Unsupported) as refused:
        async with dutyfree.local("auto", trust="untrusted", advice=path):
            pass
    assert "bare: it needs an image to start from (hint: set DUTYFREE_IMAGE)" in str(refused.value)
    assert "weak: its wall is none; untrusted takes user-kernel or stronger" in str(refused.value)


async def test_a_wall_that_no_candidate_has_is_said_to_be_missing(tmp_path: Path) -> None:
    path = advice(tmp_path, ("weak", "process", "none", 0.1), ("gone", "nothing-of-this-name", "vm", 1.0))
    with pytest.raises(Unsupported, match=r"gone: there is no substrate .*; weak: its wall is none"):
        async with dutyfree.local("auto", trust="hostile", advice=path):
            pass


async def test_if_nothing_works_the_error_says_why_for_each(tmp_path: Path) -> None:
    path = advice(tmp_path, ("one", "nowhere", "none", 0.1), ("two", "elsewhere", "none", 1.0))
    with pytest.raises(Unsupported, match=r"one: there is no substrate 'nowhere'.*two: there is no substrate"):
        async with dutyfree.local("auto", trust="trusted", advice=path):
            pass


def test_priors_are_ordered_as_everybody_measures_them() -> None:
    names = {trust: Choice.of(trust.value, accept_emulated=True).decide().chosen.name for trust in Trust}
    assert names == {"trusted": "process", "model": "cell", "untrusted": "microvm", "hostile": "microvm"}
    short = Choice.of("untrusted", expected_actions=1, expected_work_s=0.05).decide().chosen.name
    assert short == "gvisor", "what starts first and runs slower is cheaper for very little work"
    assert all(each.isolation is not Isolation.NONE for each in PRIORS if each.name != "process")


@pytest.mark.parametrize(
    "options", [{"trust": "nobody"}, {"colour": 1}, {"advice": "/nowhere"}, {"expected_actions": -1}]
)
async def test_bad_options_are_said_to_be(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        async with dutyfree.local("auto", **options):
            pass


async def test_advice_of_ones_own_decides(tmp_path: Path) -> None:
    path = advice(tmp_path, ("slow", "process", "none", 2.0), ("fast", "process", "none", 1.0))
    async with dutyfree.local("auto", trust="trusted", advice=path) as host:
        assert host.why.startswith("fast")
