"""The delays and failures that `fake` injects. Its conformance checks show that without them it keeps the contract."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    GuestMisbehaved,
    InvalidRequest,
    LinkFailed,
    SandboxGone,
    SubstrateFailed,
)
from dutyfree.model import Action, Phase, SandboxSpec
from dutyfree.substrates.fake import Failure, FailureKind, FakeSubstrate, Latencies, Step
from dutyfree.substrates.process import ProcessSubstrate
from dutyfree.trace import SpanRecorder

SPEC = SandboxSpec()
TRUE = Action(["true"])
ERRORS: list[tuple[FailureKind, type[DutyfreeError]]] = [
    (FailureKind.FULL, CapacityError),
    (FailureKind.ERROR, SubstrateFailed),
    (FailureKind.MISBEHAVIOUR, GuestMisbehaved),
    (FailureKind.DEADLINE, DeadlineExceeded),
]


def failing(step: Step, kind: FailureKind, calls: set[int] | None = None, after_s: float = 0.0) -> FakeSubstrate:
    return FakeSubstrate(failures=[Failure(step, kind, calls, after_s=after_s)])


async def start_stream(box: Sandbox) -> None:
    async with box.stream(TRUE) as stream:
        await stream.wait()


async def run_session_line(box: Sandbox) -> None:
    async with await box.session() as session:
        await session.run("true")


async def open_terminal(box: Sandbox) -> None:
    async with await box.terminal(["true"]) as terminal:
        await terminal.wait()


ACTIONS = [lambda box: box.run(TRUE), start_stream, run_session_line, open_terminal]


async def test_it_is_what_it_wraps() -> None:
    async with FakeSubstrate() as fake, ProcessSubstrate() as process:
        assert (fake.name, fake.isolation) == ("fake", process.isolation)
        assert fake.capabilities == process.capabilities
        box = await fake.create(SPEC)
        assert (await box.run(Action("echo hi"))).text == "hi\n"
        assert len(fake.living) == 1
    assert not fake.living


async def test_delays_show_in_spans_and_in_observations() -> None:
    recorder = SpanRecorder()
    latencies = Latencies(create_s=0.03, ready_s=0.04, run_s=0.05, destroy_s=0.06)
    async with FakeSubstrate(latencies=latencies) as fake:
        box = await fake.create(SPEC, recorder)
        seen = await box.run(TRUE)
        await box.destroy()
    injected = {span.phase: span.duration_ms for span in recorder.spans if span.name == "injected"}
    least_ms = {Phase.CREATE: 30, Phase.READY: 40, Phase.DISPATCH: 50, Phase.DESTROY: 60}
    assert injected.keys() == least_ms.keys()
    assert all(injected[phase] >= least_ms[phase] for phase in least_ms)
    assert seen.timing.end_ns - seen.timing.start_ns >= 50e6
    assert seen.execute_ms < 50


@pytest.mark.parametrize("act", ACTIONS)
async def test_every_kind_of_action_is_delayed_and_fails(act: object) -> None:
    fake = FakeSubstrate(
        latencies=Latencies(run_s=0.05), failures=[Failure(Step.RUN, FailureKind.DEADLINE, range(2, 3))]
    )
    async with fake, await fake.create(SPEC) as box:
        start_s = time.monotonic()
        await act(box)  # type: ignore[operator]
        assert time.monotonic() - start_s >= 0.05
        with pytest.raises(DeadlineExceeded):
            await act(box)  # type: ignore[operator]
        await act(box)  # type: ignore[operator]
        assert fake.struck == {Step.RUN: 1}


async def test_the_same_seed_gives_the_same_injections_at_any_concurrency() -> None:
    async def outcomes(seed: int, *, at_once: bool) -> list[bool]:
        failure = Failure(Step.RUN, FailureKind.ERROR, probability=0.5)
        async with FakeSubstrate(failures=[failure], seed=seed) as fake, await fake.create(SPEC) as box:
            if at_once:
                found = await asyncio.gather(*(box.run(TRUE) for _ in range(40)), return_exceptions=True)
            else:
                found = [(await asyncio.gather(box.run(TRUE), return_exceptions=True))[0] for _ in range(40)]
            return [isinstance(each, SubstrateFailed) for each in found]

    first = await outcomes(1, at_once=True)
    assert first == await outcomes(1, at_once=False)
    assert first != await outcomes(2, at_once=True)
    assert 5 < sum(first) < 35


async def test_delays_are_drawn_from_a_seeded_generator() -> None:
    async def drawn(seed: int) -> list[float]:
        found: list[float] = []

        def delay_s(generator: random.Random) -> float:
            found.append(generator.uniform(0, 0.001))
            return found[-1]

        async with FakeSubstrate(latencies=Latencies(run_s=delay_s), seed=seed) as fake:
            box = await fake.create(SPEC)
            for _ in range(5):
                await box.run(TRUE)
        return found

    assert await drawn(1) == await drawn(1) != await drawn(2)


@pytest.mark.parametrize(("kind", "error"), ERRORS)
async def test_a_creation_that_fails_leaves_nothing(kind: FailureKind, error: type[DutyfreeError]) -> None:
    async with failing(Step.CREATE, kind, {1}) as fake:
        with pytest.raises(error):
            await fake.create(SPEC)
        assert not fake.living
        await fake.create(SPEC)


async def test_a_hanging_creation_can_be_cancelled() -> None:
    async with failing(Step.CREATE, FailureKind.HANG) as fake:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fake.create(SPEC), 0.1)
        assert not fake.living


async def test_a_sandbox_can_die_after_its_creation() -> None:
    async with failing(Step.CREATE, FailureKind.DEATH, after_s=0.2) as fake:
        box = await fake.create(SPEC)
        assert (await box.run(TRUE)).ok
        with pytest.raises(LinkFailed):
            await box.run(Action("sleep 30"))


@pytest.mark.parametrize("act", ACTIONS)
async def test_a_sandbox_dies_while_an_action_runs(act: object) -> None:
    async with failing(Step.RUN, FailureKind.DEATH) as fake:
        box = await fake.create(SPEC)
        with pytest.raises(LinkFailed):
            await act(box)  # type: ignore[operator]
        assert not box.alive
        with pytest.raises(SandboxGone):
            await act(box)  # type: ignore[operator]
        await box.destroy()
        assert not fake.living


async def test_an_action_can_run_for_a_while_before_its_sandbox_dies(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    async with failing(Step.RUN, FailureKind.DEATH, after_s=0.3) as fake:
        box = await fake.create(SPEC)
        with pytest.raises(LinkFailed):
            await box.run(Action(f"touch {begun}; sleep 30; touch {ended}"))
    assert (begun.is_file(), ended.exists()) == (True, False)


async def test_a_death_that_comes_after_the_destruction_kills_nothing() -> None:
    async with failing(Step.RUN, FailureKind.DEATH, {1}, after_s=0.1) as fake:
        box = await fake.create(SPEC)
        assert (await box.run(TRUE)).ok
        await box.destroy()
        other = await fake.create(SPEC)
        await asyncio.sleep(0.15)
        assert (await other.run(TRUE)).ok


async def test_a_guest_that_misbehaves_is_dead() -> None:
    async with failing(Step.RUN, FailureKind.MISBEHAVIOUR, {1}) as fake:
        box = await fake.create(SPEC)
        with pytest.raises(GuestMisbehaved):
            await box.run(TRUE)
        with pytest.raises((LinkFailed, SandboxGone)):
            await box.run(TRUE)


async def test_a_hanging_action_ends_with_its_sandbox() -> None:
    async with failing(Step.RUN, FailureKind.HANG) as fake:
        box = await fake.create(SPEC)
        running = asyncio.ensure_future(box.run(Action(["true"], timeout_s=0.01)))
        await asyncio.sleep(0.05)
        assert not running.done()
        await box.destroy()
        with pytest.raises(LinkFailed):
            await running


async def test_a_destruction_that_fails_can_be_tried_again() -> None:
    async with failing(Step.DESTROY, FailureKind.ERROR, {1}) as fake:
        box = await fake.create(SPEC)
        with pytest.raises(SubstrateFailed):
            await box.destroy()
        assert (box.alive, len(fake.living)) == (True, 1)
        await box.destroy()
        await box.destroy()
        assert (box.alive, len(fake.living)) == (False, 0)


async def test_close_leaves_nothing_although_no_destruction_succeeds() -> None:
    async with failing(Step.DESTROY, FailureKind.ERROR) as fake:
        box = await fake.create(SPEC)
    assert not box.alive
    assert not fake.living


@pytest.mark.parametrize(
    "options",
    [
        {"step": Step.DESTROY, "kind": FailureKind.FULL},
        {"step": Step.READY, "kind": FailureKind.ERROR},
        {"step": Step.RESET, "kind": FailureKind.DEATH},
        {"step": Step.RUN, "kind": FailureKind.ERROR, "probability": 1.5},
        {"step": Step.RUN, "kind": FailureKind.DEATH, "after_s": float("nan")},
    ],
)
def test_failures_that_the_contract_does_not_allow_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Failure(**options)  # type: ignore[arg-type]
