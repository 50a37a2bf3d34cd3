"""A tenant behind its fence, while the lease lasts and after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox, SpanListener
from dutyfree.errors import InfraFailed, InvalidRequest, LeaseLost, LinkFailed, SandboxGone, Unsupported
from dutyfree.leases.binding import Binding
from dutyfree.leases.fence import Fence
from dutyfree.model import Action, Capability, Observation, SandboxSpec
from dutyfree.substrates.fake import Failure, FailureKind, FakeSandbox, FakeSubstrate, Step
from dutyfree.substrates.guarded import GuardedSandbox, GuardedSubstrate
from support.boxes import TABLE, boxed, lease_sandbox

SLEEP = "sleep 30"
TRUE = ["true"]


@pytest.fixture
async def fakes() -> AsyncIterator[GuardedSubstrate]:
    async with GuardedSubstrate(FakeSubstrate()) as substrate:
        yield substrate


def living(substrate: GuardedSubstrate) -> int:
    assert isinstance(substrate.inner, FakeSubstrate)
    return len(substrate.inner.living)


async def test_before_the_end_it_is_as_if_there_were_no_fence(fakes: GuardedSubstrate, tmp_path: Path) -> None:
    leased = await lease_sandbox(fakes)
    box = leased.box
    assert (box.id, box.unenforced, box.alive) == (leased.inner.id, leased.inner.unenforced, True)
    await box.files.write(f"{tmp_path}/a", b"x")
    assert (await box.run(f"cat {tmp_path}/a")).stdout == b"x"
    async with box.stream("echo hi") as stream:
        assert b"".join([chunk.data async for chunk in stream]) == b"hi\n"
    with pytest.raises(InvalidRequest):
        await box.run(["true"], cwd="/nowhere")
    async with box.session() as session:
        assert (await session.run("echo hi")).text == "hi\n"
    with pytest.raises(Unsupported):
        await box.snapshot()
    assert not leased.fence.gone
    assert await leased.fence.drained(0.0)


async def test_a_call_under_way_ends_at_once(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes)

    async def tenant() -> str:
        try:
            async with asyncio.timeout(20):
                await leased.box.run(SLEEP)
        except LeaseLost:
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)  # and it can go on
            return "told"
        return "not told"

    tenants = [asyncio.create_task(tenant()) for _ in range(5)]
    await asyncio.sleep(0.02)
    start_s = time.monotonic()
    leased.fence.end()
    leased.fence.end()
    assert await leased.fence.drained(5.0)
    assert await asyncio.gather(*tenants) == ["told"] * 5
    assert time.monotonic() - start_s < 2
    assert (await leased.inner.run(Action(TRUE))).ok


async def test_a_reader_is_told_too(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes)
    came = asyncio.Event()

    async def read() -> None:
        async with leased.box.stream("echo one; sleep 30") as stream:
            async for _ in stream:
                came.set()

    reader = asyncio.create_task(read())
    await came.wait()
    leased.fence.end()
    assert await leased.fence.drained(5.0)
    with pytest.raises(LeaseLost):
        await reader


async def test_who_is_cancelled_by_the_tenant_as_well_stays_cancelled(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes)
    task = asyncio.create_task(leased.box.run(SLEEP))
    await asyncio.sleep(0.02)
    leased.fence.end()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await leased.fence.drained(0.0)


async def test_a_tenants_own_timeout_is_its_own(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await leased.box.run(SLEEP)
    assert (await leased.box.run(TRUE)).ok


class Deaf(FakeSandbox):
    """Goes on with an action although it was cancelled, and gives its observation."""

    seconds = 0.0

    async def run(self, action: Action) -> Observation:
        work = asyncio.ensure_future(super().run(action))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.sleep(self.seconds)
            return await work


class DeafFakes(FakeSubstrate):
    """Makes such sandboxes, which go on for so long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        box = await super().create(spec, on_span)
        box.__class__ = Deaf
        assert isinstance(box, Deaf)
        box.seconds = self.seconds
        return box


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_what_comes_too_late_is_withheld(seconds: float) -> None:
    async with GuardedSubstrate(DeafFakes(seconds)) as substrate:
        leased = await lease_sandbox(substrate)
        call = asyncio.create_task(leased.box.run("sleep 0.1; echo secret"))
        await asyncio.sleep(0.02)
        leased.fence.end()
        assert not await leased.fence.drained(0.03)  # the pool would destroy the sandbox
        with pytest.raises(LeaseLost, match="in progress"):
            await call
        assert await leased.fence.drained(0.0)


@pytest.mark.parametrize("kind", [FailureKind.ERROR, FailureKind.DEATH])
async def test_a_failure_within_the_lease_is_no_loss_of_it(kind: FailureKind) -> None:
    fake = FakeSubstrate(failures=[Failure(Step.RUN, kind)])
    async with GuardedSubstrate(fake) as substrate:
        leased = await lease_sandbox(substrate)
        with pytest.raises(InfraFailed):
            await leased.box.run(TRUE)
        assert not leased.box.alive
        with pytest.raises(SandboxGone):
            await leased.box.run(TRUE)
        assert not leased.fence.gone


async def test_a_sandbox_that_dies_under_a_stream_is_reported(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes)
    assert isinstance(leased.inner, GuardedSandbox)
    assert isinstance(leased.inner.inner, FakeSandbox)
    async with leased.box.stream("echo x; sleep 10") as stream:
        chunks = aiter(stream)
        await anext(chunks)
        leased.inner.inner.die()
        with pytest.raises(LinkFailed):
            await anext(chunks)


async def test_the_tenant_can_end_its_sandbox_before_its_lease(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes)
    await leased.box.destroy()
    await leased.box.destroy()
    assert living(fakes) == 0
    with pytest.raises(SandboxGone):
        await leased.box.run(TRUE)


async def test_every_action_has_the_binding_under_its_own_environment(fakes: GuardedSubstrate) -> None:
    leased = await lease_sandbox(fakes, Binding(env={"A": "bound", "B": "bound"}, secrets={"S": "hush"}))
    line = 'echo "$A $B $S $DUTYFREE_OWNER $DUTYFREE_LEASE"'
    seen = await leased.box.run(line, env={"B": "own"})
    assert seen.text == f"bound own hush ann {leased.lease.id}\n"
    async with leased.box.stream(line, env={"B": "own"}) as stream:
        data = b"".join([chunk.data async for chunk in stream])
    assert data.decode() == seen.text
    assert (await leased.inner.run(Action(line))).text == "    \n"


async def test_a_lease_with_secrets_takes_no_snapshot_that_would_hold_them(fakes: GuardedSubstrate) -> None:
    inner = (await lease_sandbox(fakes)).inner
    lease = TABLE.grant("box", "ann", 0.0, 60.0)
    TABLE.release(lease.id, lease.token)
    for binding, message in ((Binding(secrets={"S": "hush"}), "secrets"), (Binding(env={"A": "1"}), "cannot")):
        box = boxed(inner, Fence(lease.id), lease, binding, fakes.capabilities, sealed=binding.is_secret)
        with pytest.raises(Unsupported, match=message):
            await box.snapshot()
        with pytest.raises(Unsupported, match=message):
            await box.fork(2)


BOUND = Binding(
    env={"A": "bound"},
    secrets={"S": "hush"},
    files={"/srv/config": b"plain"},
    secret_files={"/dev/shm/keys/token": "hush-file"},
)


def test_what_substrates_need_for_secret_files_is_a_capability() -> None:
    with pytest.raises(Unsupported, match="secret file"):
        BOUND.check(frozenset({Capability.FILES}))
    with pytest.raises(Unsupported, match="no files"):
        BOUND.check(frozenset())
    Binding(env={"A": "1"}, secrets={"S": "x"}).check(frozenset())
