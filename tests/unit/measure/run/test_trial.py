"""A trial on substrates that work, and on substrates that do everything wrong that can be done wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import CapacityError
from dutyfree.measure.design.study import Arm, Grid, Warmth
from dutyfree.measure.results.records import Results, Trial, TrialOutcome
from dutyfree.measure.run.trial import split_stages
from dutyfree.measure.workloads.workload import ActionKind, Expectation, ScriptedAction, Workload
from dutyfree.model import Action, Observation, Phase, SandboxSpec, Span, Stage, Timing
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies, Step
from dutyfree.substrates.process import ProcessSubstrate
from dutyfree.trace import now_ns
from support.lying_substrate import Lie, LyingSubstrate
from support.study_runs import WORKLOAD, run_study, study_of

FAKE = Arm("fake", "fake")
INFRA, TIMED_OUT, UNFAITHFUL = TrialOutcome.INFRA_FAILED, TrialOutcome.TIMED_OUT, TrialOutcome.UNFAITHFUL
COMPLETED, NOT_COLD = TrialOutcome.COMPLETED, TrialOutcome.NOT_COLD


def of(results: Results, arm: str = "fake") -> list[Trial]:
    return [trial for trial in results.trials if trial.condition.arm == arm]


def failing(failure: Failure) -> Callable[[], Substrate]:
    return lambda: FakeSubstrate(failures=[failure])


def slow(latencies: Latencies) -> Callable[[], Substrate]:
    return lambda: FakeSubstrate(latencies=latencies)


async def test_phases_and_residue_are_the_wall_time(tmp_path: Path) -> None:
    results = await run_study(tmp_path / "r", study_of(FAKE, Arm("process", "process")))
    assert len(results.trials) == results.planned == 9
    for trial in results.trials:
        assert trial.completed, trial.cause
        assert sum(trial.by_phase.values()) == trial.wall_ns
        assert sum(action.latency_ns for action in trial.actions) == sum(
            trial.by_phase[phase] for phase in (Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE)
        )
        assert trial.by_phase[Phase.SETUP] > 0
        assert trial.first_observation_ns is not None
        assert trial.by_phase[Phase.SETUP] < trial.first_observation_ns < trial.wall_ns


async def test_time_is_counted_by_phase(tmp_path: Path) -> None:
    make = slow(Latencies(create_s=0.05, ready_s=0.04, run_s=0.04, destroy_s=0.06))
    results = await run_study(tmp_path / "r", study_of(FAKE), substrates={"fake": make})
    # Only the length of what is inside an action is known: what is around it is split evenly. Two actions, 40 ms each.
    least_ms = {Phase.CREATE: 50, Phase.READY: 40, Phase.DISPATCH: 40, Phase.OBSERVE: 40, Phase.DESTROY: 60}
    for phase, scripted_ms in least_ms.items():
        told_ms = [trial.by_phase[phase] / 1e6 for trial in of(results)]
        assert scripted_ms - 1 <= min(told_ms) < 3 * scripted_ms, f"{phase}: {told_ms}"


async def test_warm_trials_begin_with_what_is_left_to_do(tmp_path: Path) -> None:
    grid = Grid(2, ("marked",), (1,), warmths=(Warmth.COLD, Warmth.BASE, Warmth.REPOSITORY, Warmth.DEPENDENCIES))
    make = slow(Latencies(create_s=0.03))
    results = await run_study(tmp_path / "r", study_of(FAKE, grids=(grid,)), substrates={"fake": make})
    assert all(trial.completed for trial in results.trials)
    for trial in of(results):
        warmth = trial.condition.warmth
        assert (trial.by_phase[Phase.CREATE] > 0) == (warmth is Warmth.COLD)
        assert (trial.by_phase[Phase.SETUP] > 0) == (warmth is not Warmth.DEPENDENCIES)


def test_stages_before_and_after_the_clock_starts() -> None:
    stages = tuple(Stage(name) for name in ("image", "tools", "repository", "extras", "dependencies"))
    assert split_stages(stages, Warmth.COLD) == split_stages(stages, Warmth.BASE) == ((), stages)
    assert split_stages(stages, Warmth.REPOSITORY) == (stages[:3], stages[3:])
    assert split_stages(stages, Warmth.DEPENDENCIES) == (stages, ())
    assert split_stages(stages[3:4], Warmth.IMAGE) == ((), stages[3:4])


async def test_think_time_is_kept_and_is_no_part_of_the_trial(tmp_path: Path) -> None:
    thoughtful = Workload(
        "thoughtful",
        opening=tuple(ScriptedAction(f"a{n}", ActionKind.COMMAND, Action("true"), think_s=0.5) for n in range(3)),
    )
    study = study_of(FAKE, grids=(Grid(1, ("thoughtful",), (3,)),), keep_think_time=True, trial_timeout_s=1.0)
    start_s = time.monotonic()
    results = await run_study(tmp_path / "r", study, workloads={"thoughtful": thoughtful})
    assert time.monotonic() - start_s > 2 * 1.5
    for trial in results.trials:
        assert trial.completed, f"time to think counts towards no timeout, but: {trial.cause}"
        assert trial.wall_ns < 0.5e9


CREATE, RUN, DESTROY = Step.CREATE, Step.RUN, Step.DESTROY
FIRST_ACTION = 3
"""Its number among the calls of RUN: the two stages of the workload come before it."""


@pytest.mark.parametrize(
    ("make", "outcome", "phase"),
    [
        (failing(Failure(CREATE, FailureKind.FULL, {1})), INFRA, Phase.CREATE),
        (failing(Failure(CREATE, FailureKind.ERROR, {1})), INFRA, Phase.CREATE),
        (failing(Failure(CREATE, FailureKind.HANG, {1})), TIMED_OUT, Phase.CREATE),
        (failing(Failure(CREATE, FailureKind.MISBEHAVIOUR, {1})), INFRA, Phase.CREATE),
        (failing(Failure(CREATE, FailureKind.DEADLINE, {1})), INFRA, Phase.CREATE),
        (failing(Failure(CREATE, FailureKind.DEATH, {1})), INFRA, Phase.SETUP),
        (failing(Failure(RUN, FailureKind.ERROR, {1})), INFRA, Phase.SETUP),
        (failing(Failure(RUN, FailureKind.HANG, {1})), TIMED_OUT, Phase.SETUP),
        (failing(Failure(RUN, FailureKind.DEATH, {1})), INFRA, Phase.SETUP),
        (lambda: LyingSubstrate("stream", {1}), UNFAITHFUL, Phase.EXECUTE),
        (failing(Failure(RUN, FailureKind.ERROR, {FIRST_ACTION})), INFRA, Phase.DISPATCH),
        (failing(Failure(RUN, FailureKind.HANG, {FIRST_ACTION})), TIMED_OUT, Phase.DISPATCH),
        (failing(Failure(RUN, FailureKind.DEATH, {FIRST_ACTION})), INFRA, Phase.DISPATCH),
        (lambda: LyingSubstrate("run", {1}), UNFAITHFUL, Phase.EXECUTE),
        (failing(Failure(DESTROY, FailureKind.ERROR, {1})), INFRA, Phase.DESTROY),
        (failing(Failure(DESTROY, FailureKind.HANG, {1})), INFRA, Phase.DESTROY),
        (lambda: LyingSubstrate("destroy", {1}), INFRA, Phase.DESTROY),
    ],
)
async def test_a_fault_is_one_counted_failure(
    tmp_path: Path, make: Callable[[], Substrate], outcome: TrialOutcome, phase: Phase
) -> None:
    """The first occurrence goes wrong, and nothing else does; the other trials are what they would have been."""
    start_s = time.monotonic()
    results = await run_study(tmp_path / "r", study_of(FAKE, trial_timeout_s=1.0), substrates={"fake": make})
    assert time.monotonic() - start_s < 10
    assert len(results.trials) == results.planned
    assert results.cut_short == ""
    first, *others = of(results)
    assert (first.outcome, first.failed_phase) == (outcome, phase)
    assert first.cause
    assert sum(first.by_phase.values()) == first.wall_ns
    assert all(trial.completed for trial in others)
    assert all(trial.completed for trial in of(results, "null"))


async def check_all_fail(directory: Path, make: Callable[[], Substrate]) -> None:
    grid = Grid(2, ("marked",), (2,), warmths=(Warmth.COLD, Warmth.REPOSITORY), concurrencies=(1, 2))
    study = study_of(FAKE, grids=(grid,), trial_timeout_s=0.5)
    results = await run_study(directory, study, substrates={"fake": make}, destroy_timeout_s=0.1)
    assert len(results.trials) == results.planned
    assert not any(trial.completed for trial in of(results))
    assert all(trial.completed for trial in of(results, "null"))


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        *((step, kind) for step in (CREATE, RUN) for kind in FailureKind),
        *((DESTROY, kind) for kind in (FailureKind.ERROR, FailureKind.HANG)),
    ],
)
async def test_a_substrate_that_is_always_broken(tmp_path: Path, step: Step, kind: FailureKind) -> None:
    await check_all_fail(tmp_path / "r", failing(Failure(step, kind)))


@pytest.mark.parametrize("lie", ["run", "stream", "destroy"])
async def test_a_substrate_that_always_lies(tmp_path: Path, lie: Lie) -> None:
    await check_all_fail(tmp_path / "r", lambda: LyingSubstrate(lie))


class Wayward(FakeSubstrate):
    """Does one thing that no contract allows."""

    def __init__(self, waywardness: str) -> None:
        super().__init__()
        self.waywardness = waywardness

    async def open(self) -> None:
        if self.waywardness == "open":
            raise ZeroDivisionError("at open")
        await super().open()

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Any:
        if self.waywardness == "raise in create":
            raise ValueError("a foreign error")
        if self.waywardness == "cancel in create":
            raise asyncio.CancelledError
        if self.waywardness == "nothing from create":
            return None
        if self.waywardness == "ignore cancellation":
            await _ignore_cancellation()
        if self.waywardness == "full":
            raise CapacityError("no room")
        start_ns = now_ns()
        sandbox = await super().create(spec, on_span)
        assert on_span is not None
        for span in _lies(self.waywardness, start_ns):
            on_span(span)
        if self.waywardness == "same id":
            sandbox.id = "twin"
        elif self.waywardness == "long id":
            sandbox.id = "x" * 5_000_000 + sandbox.id
        elif self.waywardness.startswith(("run", "destroy")):
            return WaywardSandbox(sandbox, self.waywardness)
        return sandbox


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class WaywardSandbox:
    """Looks like `inner`, up to a point."""

    def __init__(self, inner: Sandbox, waywardness: str) -> None:
        self._inner = inner
        self._waywardness = waywardness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, action: Action) -> Any:
        seen = await self._inner.run(action)
        match self._waywardness:
            case "run raises":
                raise Unspeakable
            case "run gives nothing":
                return None
            case "run takes negative time":
                return _with_execution(seen, -5)
            case "run takes longer than it takes":
                return _with_execution(seen, 10**12)
            case "run takes half a nanosecond":
                return _with_execution(seen, 0.5)
            case "run ignores cancellation":
                await _ignore_cancellation()
        return seen

    async def destroy(self) -> None:
        if self._waywardness == "destroy raises":
            raise KeyError("gone")
        if self._waywardness == "destroy ignores cancellation":
            await _ignore_cancellation()
        await self._inner.destroy()


def _with_execution(seen: Observation, execute_ns: Any) -> Observation:
    timing = Timing(seen.timing.sandbox, seen.timing.start_ns, seen.timing.end_ns, execute_ns)
    values = {name: getattr(seen, name) for name in Observation.__dataclass_fields__}
    return Observation(**(values | {"timing": timing}))


def _lies(waywardness: str, start_ns: int) -> list[Any]:
    end_ns = now_ns()
    return {
        "span of before": [Span(Phase.CREATE, start_ns - 10**9, end_ns)],
        "span of the future": [Span(Phase.READY, start_ns, end_ns + 10**12)],
        "span that ends before it starts": [Span(Phase.READY, end_ns, start_ns)],
        "span that calls tax execution": [Span(Phase.EXECUTE, start_ns, end_ns)],
        "span that is none": [None],
        "span with words for numbers": [Span(Phase.CREATE, "now", "then")],  # type: ignore[arg-type]
        "span with a long name": [Span(Phase.CREATE, start_ns, end_ns, "", "x" * 5_000_000)],
        "too many spans": [Span(Phase.CREATE, start_ns, end_ns)] * 20_000,
    }.get(waywardness, [])


async def _ignore_cancellation() -> None:
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        try:
            await asyncio.sleep(end_s - time.monotonic())
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(
    ("waywardness", "outcome", "phase"),
    [
        ("raise in create", INFRA, Phase.CREATE),
        ("cancel in create", INFRA, Phase.CREATE),
        ("nothing from create", INFRA, Phase.CREATE),
        ("ignore cancellation", TIMED_OUT, Phase.CREATE),
        ("full", INFRA, Phase.CREATE),
        ("run raises", INFRA, Phase.DISPATCH),
        ("run gives nothing", INFRA, Phase.DISPATCH),
        ("run takes negative time", INFRA, Phase.DISPATCH),
        ("run takes longer than it takes", INFRA, Phase.DISPATCH),
        ("run takes half a nanosecond", INFRA, Phase.DISPATCH),
        ("run ignores cancellation", TIMED_OUT, Phase.DISPATCH),
        ("destroy raises", INFRA, Phase.DESTROY),
        ("destroy ignores cancellation", INFRA, Phase.DESTROY),
        ("span of before", INFRA, Phase.CREATE),
        ("span of the future", INFRA, Phase.CREATE),
        ("span that ends before it starts", INFRA, Phase.CREATE),
        ("span that calls tax execution", INFRA, Phase.CREATE),
        ("span that is none", INFRA, Phase.CREATE),
        ("span with words for numbers", INFRA, Phase.CREATE),
        ("span with a long name", INFRA, Phase.CREATE),
        ("too many spans", INFRA, Phase.CREATE),
        ("long id", COMPLETED, None),
    ],
)
async def test_a_substrate_that_keeps_no_contract(
    tmp_path: Path, waywardness: str, outcome: TrialOutcome, phase: Phase | None
) -> None:
    study = study_of(FAKE, grids=(Grid(2, ("marked",), (2,)),), trial_timeout_s=1.0)
    results = await run_study(tmp_path / "r", study, substrates={"fake": lambda: Wayward(waywardness)})
    assert len(results.trials) == results.planned
    assert [(trial.outcome, trial.failed_phase) for trial in of(results)] == [(outcome, phase)] * 2
    assert all(trial.completed for trial in of(results, "null"))
    await asyncio.sleep(0)


async def test_a_call_that_comes_back_after_its_trial_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutyfree.measure.run.trial.GRACE_S", 0.1)
    study = study_of(FAKE, Arm("slow", "fake"), grids=(Grid(4, ("marked",), (3,)),), trial_timeout_s=0.2)
    makers = {"fake": lambda: Wayward("run ignores cancellation"), "slow": slow(Latencies(create_s=0.15))}
    results = await run_study(tmp_path / "r", study, substrates=makers, destroy_timeout_s=0.1)
    assert len(results.trials) == results.planned
    assert {trial.outcome for trial in of(results)} == {TIMED_OUT}
    await asyncio.sleep(1.5)


async def test_an_arm_that_cannot_be_opened_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    study = study_of(FAKE, Arm("good", "fake"))
    results = await run_study(tmp_path / "r", study, substrates={"fake": lambda: Wayward("open")})
    assert "ZeroDivisionError" in results.arms["fake"]["unavailable"]
    assert not of(results)
    assert len(of(results, "good")) == 3
    assert results.cut_short == ""


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        (b"", ""),
        (b"warning\nsh: x.py:  Permission denied\n\n", ": sh: x.py: Permission denied"),
        (b"\x1b[31mred", ""),
        (b"\xff" * 5000, ": " + "\ufffd" * 120),
    ],
)
def test_what_a_command_complained_about_is_told(stderr: bytes, told: str) -> None:
    counts: dict[str, Any] = {"stdout_bytes": 0, "stderr_bytes": len(stderr), "cpu_ms": 0.0, "peak_memory_bytes": 0}
    flags = dict.fromkeys(("timed_out", "truncated", "oom_killed", "pids_limited", "disk_full"), False)
    seen = Observation(
        exit_code=1, signal=None, stdout=b"", stderr=stderr, timing=Timing("", 0, 1, 1), **counts, **flags
    )
    assert Expectation().mismatch(seen) == f"exit code 1, not 0{told}"


async def test_an_action_that_does_not_give_what_was_expected_is_named(tmp_path: Path) -> None:
    wrong = Workload(
        "wrong",
        opening=(
            ScriptedAction("fine", ActionKind.COMMAND, Action("true")),
            ScriptedAction("odd", ActionKind.COMMAND, Action("false")),
            ScriptedAction("never", ActionKind.COMMAND, Action("true"), Expectation()),
        ),
    )
    results = await run_study(
        tmp_path / "r", study_of(FAKE, grids=(Grid(1, ("wrong",), (3,)),)), workloads={"wrong": wrong}
    )
    [trial] = of(results)
    assert (trial.outcome, trial.failed_phase, trial.cause) == (UNFAITHFUL, Phase.EXECUTE, "odd: exit code 1, not 0")
    assert [action.name for action in trial.actions] == ["fine", "odd"]


async def test_a_stage_that_fails_is_no_failure_of_the_machinery(tmp_path: Path) -> None:
    wrong = Workload("wrong", stages=(Stage("repository", run=("false",)),), opening=WORKLOAD.menu)
    results = await run_study(tmp_path / "r", study_of(FAKE, grids=(Grid(1, ("wrong",)),)), workloads={"wrong": wrong})
    [trial] = of(results)
    assert (trial.outcome, trial.failed_phase) == (UNFAITHFUL, Phase.SETUP)
    assert "stage 'repository'" in trial.cause


class Forgetful(ProcessSubstrate):
    """Gives every sandbox the same home directory."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Any:
        return await super().create(replace(spec, env={"HOME": str(self.home)}), on_span)


async def test_what_an_earlier_trial_left_is_found(tmp_path: Path) -> None:
    study = study_of(FAKE, grids=(Grid(3, ("marked",), (1,)),))
    results = await run_study(tmp_path / "r", study, substrates={"fake": lambda: Forgetful(tmp_path)})
    assert [trial.outcome for trial in of(results)] == [COMPLETED, NOT_COLD, NOT_COLD]
    assert "canary" in of(results)[1].cause


async def test_a_sandbox_that_was_there_before_is_not_cold(tmp_path: Path) -> None:
    study = study_of(FAKE, grids=(Grid(2, ("marked",), (1,)),))
    results = await run_study(tmp_path / "r", study, substrates={"fake": lambda: Wayward("same id")})
    assert [trial.outcome for trial in of(results)] == [COMPLETED, NOT_COLD]
    assert "'twin'" in of(results)[1].cause
