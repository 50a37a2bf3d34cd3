"""The judge judged: the suite finds liars, ends in time, and names what it did not run."""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest

from dutyfree.contract import Substrate
from dutyfree.model import Capability
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies, Step
from dutyfree.substrates.process import ProcessSubstrate
from dutyfree.testing import Broken, Check, NotRun, Outcome, Report, all_checks, run_conformance
from dutyfree.testing.check import check
from dutyfree.testing.context import Context
from dutyfree.testing.gaps import KNOWN_GAPS
from support.lying_substrate import LyingSubstrate


def checks(*ids: str) -> list[Check]:
    found = [one for one in all_checks() if one.id in ids]
    assert len(found) == len(ids)
    return found


async def judge(substrate: Substrate, *ids: str) -> dict[str, Outcome]:
    report = await run_conformance(substrate, checks=checks(*ids), another=ProcessSubstrate)
    return {result.id: result.outcome for result in report.results}


def failing(step: Step, kind: FailureKind) -> FakeSubstrate:
    return FakeSubstrate(failures=[Failure(step, kind)])


def test_ids_are_unique_and_every_check_makes_a_promise() -> None:
    ids = [one.id for one in all_checks()]
    assert len(ids) == len(set(ids)) > 100
    assert all("." in one.id and len(one.promise) > 10 and one.limit_s > 0 for one in all_checks())


def test_every_topic_of_the_contract_has_checks() -> None:
    topics = {one.id.partition(".")[0] for one in all_checks()}
    assert topics == {
        *("lifecycle", "run", "streaming", "background", "files", "sessions", "terminals", "timeouts", "cancellation"),
        *("limits", "concurrency", "attribution", "accounting", "leaks", "capabilities", "reset", "snapshot", "fork"),
        *("images", "users", "ports", "egress", "mounts", "caches", "watching", "pausing", "metrics"),
    }


def test_every_known_gap_is_about_a_check_that_exists() -> None:
    assert {gap.check for gap in KNOWN_GAPS} <= {one.id for one in all_checks()}


@pytest.mark.parametrize(
    ("substrate", "check_id"),
    [
        (failing(Step.CREATE, FailureKind.DEATH), "lifecycle.ready"),
        (LyingSubstrate("run"), "run.exit-codes"),
        (LyingSubstrate("run"), "run.argv"),
        (LyingSubstrate("run"), "run.signal"),
        (LyingSubstrate("run"), "timeouts.observation"),
        (LyingSubstrate("run"), "accounting.execute"),
        (LyingSubstrate("run"), "concurrency.fifty"),
        (LyingSubstrate("stream"), "streaming.early"),
        (LyingSubstrate("stream"), "streaming.wait-unread"),
        (LyingSubstrate("destroy"), "lifecycle.destroy-twice"),
        (LyingSubstrate("destroy"), "lifecycle.gone-after-destroy"),
        (failing(Step.RUN, FailureKind.ERROR), "run.empty-output"),
        (failing(Step.RUN, FailureKind.DEATH), "run.empty-output"),
        (FakeSubstrate(latencies=Latencies(run_s=4)), "timeouts.observation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_substrate_that_does_not_keep_a_promise_fails_its_check(substrate: Substrate, check_id: str) -> None:
    assert (await judge(substrate, check_id))[check_id] is Outcome.FAILED


async def test_a_check_that_hangs_is_ended_and_the_rest_goes_on() -> None:
    @check("test.hangs", "never ends, and ignores its cancellation once", limit_s=0.2)
    async def hangs(context: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    start_s = time.monotonic()
    report = await run_conformance(ProcessSubstrate(), checks=[hangs, *checks("run.env")])
    assert time.monotonic() - start_s < 5
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.PASSED]
    assert "0.2 s" in report.results[0].reason


async def test_what_was_not_run_is_named_and_is_no_pass() -> None:
    @check("test.impossible", "cannot be tried")
    async def impossible(context: Context) -> None:
        raise NotRun("the moon is in the way")

    report = await run_conformance(ProcessSubstrate(), checks=[impossible, *checks("fork.counts", "limits.cpu")])
    assert not report.ok
    table = report.table()
    assert "test.impossible" in table
    assert "the moon is in the way" in table
    assert "not applicable (capability fork missing)" in table
    assert "0 passed, 0 failed, 0 known gap, 3 not run" in table
    assert report.as_json()["counts"] == {"passed": 0, "failed": 0, "known gap": 0, "recorded": 0, "not run": 3}


async def test_a_known_gap_is_strict() -> None:
    @check("test.breaks", "is not kept")
    async def breaks(context: Context) -> None:
        raise Broken("not kept")

    async def outcomes(gaps: dict[str, str]) -> list[Outcome]:
        report = await run_conformance(ProcessSubstrate(), checks=[breaks, *checks("run.env")], gaps=gaps)
        return [result.outcome for result in report.results]

    assert await outcomes({"test.breaks": "because"}) == [Outcome.KNOWN_GAP, Outcome.PASSED]
    assert await outcomes({"run.env": "because"}) == [Outcome.FAILED, Outcome.FAILED]


@pytest.mark.alone  # on a busy machine a process without a limit looks limited
async def test_checks_are_gated_by_capability_alone() -> None:
    # Claims nothing that concerns files: the checks of reset, snapshot and fork would then change the host's own.
    class Boaster(ProcessSubstrate):
        name = "boaster"

        @property
        def capabilities(self) -> frozenset[Capability]:
            return super().capabilities | {Capability.LIMIT_CPU}

    assert (await judge(Boaster(), "limits.cpu"))["limits.cpu"] is Outcome.FAILED
    assert (await judge(ProcessSubstrate(), "limits.cpu"))["limits.cpu"] is Outcome.NOT_RUN


async def test_nothing_is_left_alive_after_a_run() -> None:
    substrate = FakeSubstrate()
    report: Report = await run_conformance(substrate, checks=checks("lifecycle.ready", "concurrency.fifty"))
    assert report.ok
    assert not substrate.living


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dutyfree.testing", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def test_the_command_says_how_it_went_by_its_exit_code() -> None:
    good = command("process", "--guarded", "--only", "run.env", "--only", "lifecycle")
    assert good.returncode == 0
    assert "process: 11 passed, 0 failed" in good.stdout
    assert command("no-such-substrate").returncode == 2
    assert command("process", "--only", "no.such-check").returncode == 2
    missing = command("process", "--only", "run.env", DUTYFREE_NATIVE_DIR="/nowhere")
    assert missing.returncode == 3
    assert missing.stdout == ""


def test_the_command_speaks_json() -> None:
    seen = json.loads(command("process", "--json", "--only", "run.env", "--only", "limits.cpu").stdout)
    assert [(one["id"], one["outcome"]) for one in seen["checks"]] == [("run.env", "passed"), ("limits.cpu", "not run")]
    assert seen["ok"] is True
