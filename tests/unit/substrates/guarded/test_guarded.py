"""What the guard adds to a substrate that misbehaves."""

import asyncio
import time

import pytest

from dutyfree.contract import Sandbox, SpanListener
from dutyfree.errors import (
    DeadlineExceeded,
    InfraFailed,
    InvalidRequest,
    LinkFailed,
    SandboxGone,
    SubstrateFailed,
)
from dutyfree.model import Action, Phase, SandboxSpec
from dutyfree.substrates.fake import Failure, FailureKind, FakeSandbox, FakeSubstrate, Latencies, Step
from dutyfree.substrates.guarded import GuardedSandbox, GuardedSubstrate
from dutyfree.trace import SpanRecorder

SPEC = SandboxSpec()
TRUE = Action(["true"])


def guarded(*failures: Failure, **options: float) -> tuple[FakeSubstrate, GuardedSubstrate]:
    fake = FakeSubstrate(failures=failures)
    return fake, GuardedSubstrate(fake, **options)


class Stubborn(FakeSubstrate):
    """Finishes a creation although it was cancelled."""

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return await super().create(spec, on_span)


async def test_what_it_is_shines_through() -> None:
    fake, substrate = guarded()
    assert (substrate.name, substrate.isolation) == (fake.name, fake.isolation)
    assert substrate.capabilities == fake.capabilities
    async with substrate, await substrate.create(SPEC) as box:
        assert isinstance(box, GuardedSandbox)
        assert isinstance(box.inner, FakeSandbox)
        assert (box.id, box.unenforced, box.pid) == (box.inner.id, box.inner.unenforced, box.inner.pid)


@pytest.mark.parametrize("kind", [FailureKind.ERROR, FailureKind.DEATH, FailureKind.MISBEHAVIOUR, FailureKind.DEADLINE])
async def test_any_infrastructure_failure_destroys_the_sandbox(kind: FailureKind) -> None:
    fake, substrate = guarded(Failure(Step.RUN, kind, {2}))
    async with substrate:
        box = await substrate.create(SPEC)
        assert (await box.run(TRUE)).ok
        with pytest.raises(InfraFailed):
            await box.run(TRUE)
        assert not box.alive
        assert not fake.living
        with pytest.raises(SandboxGone):
            await box.run(TRUE)
        with pytest.raises(SandboxGone):
            await box.files.read("/tmp/x")
        with pytest.raises(SandboxGone):
            box.stream(TRUE)
        await box.destroy()


async def test_a_failing_stream_destroys_the_sandbox() -> None:
    fake, substrate = guarded(Failure(Step.RUN, FailureKind.ERROR))
    async with substrate:
        box = await substrate.create(SPEC)
        with pytest.raises(SubstrateFailed):
            async with box.stream(TRUE):
                pass
        assert not fake.living


async def test_a_death_seen_by_a_reader_destroys_the_sandbox() -> None:
    _, substrate = guarded()
    async with substrate:
        box = await substrate.create(SPEC)
        assert isinstance(box, GuardedSandbox)
        assert isinstance(box.inner, FakeSandbox)
        async with box.stream(Action("echo x; sleep 10")) as stream:
            chunks = aiter(stream)
            await anext(chunks)
            box.inner.die()
            with pytest.raises(LinkFailed):
                await anext(chunks)
        with pytest.raises(SandboxGone):
            await box.run(TRUE)


async def test_the_callers_own_errors_destroy_nothing() -> None:
    fake, substrate = guarded()
    async with substrate:
        box = await substrate.create(SPEC)
        with pytest.raises(InvalidRequest):
            await box.run(Action(["true"], cwd="/nowhere"))
        assert not (await box.run(Action("exit 3"))).ok
        assert len(fake.living) == 1


async def test_destroying_is_done_once_however_many_ask() -> None:
    recorder = SpanRecorder()
    fake = FakeSubstrate(latencies=Latencies(destroy_s=0.05))
    async with GuardedSubstrate(fake) as substrate:
        box = await substrate.create(SPEC, recorder)
        await asyncio.gather(*(box.destroy() for _ in range(10)))
        await box.destroy()
    ends = [span for span in recorder.spans if span.phase is Phase.DESTROY]
    assert sorted(span.name for span in ends) == ["", "injected"]


async def test_calls_are_refused_as_soon_as_destruction_has_begun() -> None:
    fake = FakeSubstrate(latencies=Latencies(destroy_s=0.1))
    async with GuardedSubstrate(fake) as substrate:
        box = await substrate.create(SPEC)
        destruction = asyncio.ensure_future(box.destroy())
        await asyncio.sleep(0.02)
        assert not box.alive
        with pytest.raises(SandboxGone):
            await box.run(TRUE)
        await destruction


async def test_a_destruction_goes_on_without_its_caller() -> None:
    fake = FakeSubstrate(latencies=Latencies(destroy_s=0.1))
    async with GuardedSubstrate(fake) as substrate:
        box = await substrate.create(SPEC)
        destruction = asyncio.ensure_future(box.destroy())
        await asyncio.sleep(0.02)
        destruction.cancel()
        await asyncio.sleep(0.2)
        assert not fake.living
        await box.destroy()


async def test_a_hanging_destruction_is_bounded_and_can_be_tried_again() -> None:
    fake, substrate = guarded(Failure(Step.DESTROY, FailureKind.HANG, {1}), destroy_timeout_s=0.1)
    async with substrate:
        box = await substrate.create(SPEC)
        start_s = time.monotonic()
        with pytest.raises(SubstrateFailed, match=r"0\.1 s"):
            await box.destroy()
        assert time.monotonic() - start_s < 1
        assert len(fake.living) == 1
        await box.destroy()
        assert not fake.living


async def test_close_tries_again_what_could_not_be_destroyed() -> None:
    fake, substrate = guarded(Failure(Step.DESTROY, FailureKind.ERROR, {1}))
    async with substrate:
        box = await substrate.create(SPEC)
        with pytest.raises(SubstrateFailed):
            await box.destroy()
    assert not fake.living


async def test_an_error_is_not_hidden_by_the_failure_to_clean_up() -> None:
    _, substrate = guarded(Failure(Step.RUN, FailureKind.ERROR), Failure(Step.DESTROY, FailureKind.ERROR, {1}))
    async with substrate:
        box = await substrate.create(SPEC)
        with pytest.raises(SubstrateFailed) as caught:
            await box.run(TRUE)
        assert "could not be destroyed" in caught.value.__notes__[0]


async def test_a_cancelled_creation_leaves_nothing_even_if_it_finishes() -> None:
    fake = Stubborn()
    async with GuardedSubstrate(fake) as substrate:
        creation = asyncio.ensure_future(substrate.create(SPEC))
        await asyncio.sleep(0.01)
        creation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creation
        assert not fake.living
        assert (await (await substrate.create(SPEC)).run(TRUE)).ok


async def test_a_hanging_creation_is_bounded() -> None:
    _, substrate = guarded(Failure(Step.CREATE, FailureKind.HANG, {1}), create_timeout_s=0.05)
    async with substrate:
        with pytest.raises(DeadlineExceeded):
            await substrate.create(SPEC)
        assert (await (await substrate.create(SPEC)).run(TRUE)).ok


async def test_close_ends_creations_and_sandboxes_and_refuses_more() -> None:
    fake, substrate = guarded(Failure(Step.CREATE, FailureKind.HANG, {2}))
    await substrate.open()
    box = await substrate.create(SPEC)
    creation = asyncio.ensure_future(substrate.create(SPEC))
    await asyncio.sleep(0.01)
    await substrate.close()
    with pytest.raises(SubstrateFailed):
        await creation
    assert not box.alive
    assert not fake.living
    with pytest.raises(InvalidRequest):
        await substrate.create(SPEC)
    await substrate.close()


async def test_creations_run_beside_each_other() -> None:
    fake = FakeSubstrate(latencies=Latencies(create_s=0.1))
    async with GuardedSubstrate(fake) as substrate:
        start_s = time.monotonic()
        await asyncio.gather(*(substrate.create(SPEC) for _ in range(10)))
        assert time.monotonic() - start_s < 0.5
