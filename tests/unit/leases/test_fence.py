"""A tenant behind its fence, while the lease lasts and after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dutyfree.client.box import Box
from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import InfraFailed, InvalidRequest, LeaseLost, LinkFailed, SandboxGone, Unsupported
from dutyfree.leases.binding import Binding, bind
from dutyfree.leases.fence import Fence
from dutyfree.leases.table import Lease, LeaseTable
from dutyfree.model import Action, Capability, Observation, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.substrates.fake import Failure, FailureKind, FakeSandbox, FakeSubstrate, Step
from dutyfree.substrates.guarded import GuardedSandbox, GuardedSubstrate
from support.boxes import boxed

SLEEP = "sleep 30"
TRUE = ["true"]
TABLE = LeaseTable()


@dataclass
class Tenancy:
    """A lease, and the two sides of its fence."""

    inner: Sandbox
    fence: Fence
    lease: Lease
    box: Box


async def let(substrate: Substrate, binding: Binding | None = None, spec: SandboxSpec | None = None) -> Tenancy:
    inner = await substrate.create(spec or SandboxSpec())
    lease = TABLE.grant(inner.id, "ann", time.monotonic(), 60.0)
    TABLE.release(lease.id, lease.token)
    fence, binding = Fence(lease.id), binding or Binding()
    await bind(inner, binding, substrate.capabilities)
    return Tenancy(inner, fence, lease, boxed(inner, fence, lease, binding, substrate.capabilities))


@pytest.fixture
async def fakes() -> AsyncIterator[GuardedSubstrate]:
    async with GuardedSubstrate(FakeSubstrate()) as substrate:
        yield substrate


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[GuardedSubstrate]:
    async with GuardedSubstrate(CellSubstrate(store=tmp_path / "store")) as substrate:
        yield substrate


def living(substrate: GuardedSubstrate) -> int:
    assert isinstance(substrate.inner, FakeSubstrate)
    return len(substrate.inner.living)


async def test_before_the_end_it_is_as_if_there_were_no_fence(fakes: GuardedSubstrate, tmp_path: Path) -> None:
    let_out = await let(fakes)
    box = let_out.box
    assert (box.id, box.unenforced, box.alive) == (let_out.inner.id, let_out.inner.unenforced, True)
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
    assert not let_out.fence.gone
    assert await let_out.fence.drained(0.0)


async def test_after_the_end_every_call_says_so_and_touches_nothing(cells: GuardedSubstrate, tmp_path: Path) -> None:
    let_out = await let(cells)
    before = [each.name for each in await let_out.inner.files.list("/")]
    box = let_out.box
    stream = box.stream("cat")
    async with stream:
        let_out.fence.end("has expired")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: box.run(TRUE),
            lambda: box.session().__aenter__(),
            lambda: box.terminal("sh").__aenter__(),
            box.reset,
            box.snapshot,
            lambda: box.fork(2),
            lambda: box.files.read("/a"),
            lambda: box.files.write("/a", b""),
            lambda: box.files.append("/a", b""),
            lambda: box.files.list("/"),
            lambda: box.files.stat("/"),
            lambda: box.files.mkdir("/a"),
            lambda: box.files.move("/tmp", "/b"),
            lambda: box.files.remove("/tmp"),
            lambda: box.files.upload(tmp_path, "/a"),
            lambda: box.files.download("/tmp", tmp_path / "a"),
            lambda: stream.write(b"x"),
            stream.end_input,
            lambda: stream.signal(15),
            stream.kill,
            stream.wait,
            lambda: anext(aiter(stream)),
        ]
        for call in calls:
            with pytest.raises(LeaseLost, match="has expired"):
                await call()
        with pytest.raises(LeaseLost):
            box.stream(TRUE)
    assert not box.alive
    await box.destroy()
    assert let_out.inner.alive
    assert [each.name for each in await let_out.inner.files.list("/")] == before


async def test_a_call_under_way_ends_at_once(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes)

    async def tenant() -> str:
        try:
            async with asyncio.timeout(20):
                await let_out.box.run(SLEEP)
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
    let_out.fence.end()
    let_out.fence.end()
    assert await let_out.fence.drained(5.0)
    assert await asyncio.gather(*tenants) == ["told"] * 5
    assert time.monotonic() - start_s < 2
    assert (await let_out.inner.run(Action(TRUE))).ok


async def test_a_reader_is_told_too(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes)
    came = asyncio.Event()

    async def read() -> None:
        async with let_out.box.stream("echo one; sleep 30") as stream:
            async for _ in stream:
                came.set()

    reader = asyncio.create_task(read())
    await came.wait()
    let_out.fence.end()
    assert await let_out.fence.drained(5.0)
    with pytest.raises(LeaseLost):
        await reader


async def test_who_is_cancelled_by_the_tenant_as_well_stays_cancelled(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes)
    task = asyncio.create_task(let_out.box.run(SLEEP))
    await asyncio.sleep(0.02)
    let_out.fence.end()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await let_out.fence.drained(0.0)


async def test_a_tenants_own_timeout_is_its_own(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await let_out.box.run(SLEEP)
    assert (await let_out.box.run(TRUE)).ok


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
        let_out = await let(substrate)
        call = asyncio.create_task(let_out.box.run("sleep 0.1; echo secret"))
        await asyncio.sleep(0.02)
        let_out.fence.end()
        assert not await let_out.fence.drained(0.03)  # the pool would destroy the sandbox
        with pytest.raises(LeaseLost, match="in progress"):
            await call
        assert await let_out.fence.drained(0.0)


@pytest.mark.parametrize("kind", [FailureKind.ERROR, FailureKind.DEATH])
async def test_a_failure_within_the_lease_is_no_loss_of_it(kind: FailureKind) -> None:
    fake = FakeSubstrate(failures=[Failure(Step.RUN, kind)])
    async with GuardedSubstrate(fake) as substrate:
        let_out = await let(substrate)
        with pytest.raises(InfraFailed):
            await let_out.box.run(TRUE)
        assert not let_out.box.alive
        with pytest.raises(SandboxGone):
            await let_out.box.run(TRUE)
        assert not let_out.fence.gone


async def test_a_sandbox_that_dies_under_a_stream_is_reported(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes)
    assert isinstance(let_out.inner, GuardedSandbox)
    assert isinstance(let_out.inner.inner, FakeSandbox)
    async with let_out.box.stream("echo x; sleep 10") as stream:
        chunks = aiter(stream)
        await anext(chunks)
        let_out.inner.inner.die()
        with pytest.raises(LinkFailed):
            await anext(chunks)


async def test_the_tenant_can_end_its_sandbox_before_its_lease(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes)
    await let_out.box.destroy()
    await let_out.box.destroy()
    assert living(fakes) == 0
    with pytest.raises(SandboxGone):
        await let_out.box.run(TRUE)


async def test_every_action_has_the_binding_under_its_own_environment(fakes: GuardedSubstrate) -> None:
    let_out = await let(fakes, Binding(env={"A": "bound", "B": "bound"}, secrets={"S": "hush"}))
    line = 'echo "$A $B $S $DUTYFREE_OWNER $DUTYFREE_LEASE"'
    seen = await let_out.box.run(line, env={"B": "own"})
    assert seen.text == f"bound own hush ann {let_out.lease.id}\n"
    async with let_out.box.stream(line, env={"B": "own"}) as stream:
        data = b"".join([chunk.data async for chunk in stream])
    assert data.decode() == seen.text
    assert (await let_out.inner.run(Action(line))).text == "    \n"


async def test_a_lease_with_secrets_takes_no_snapshot_that_would_hold_them(fakes: GuardedSubstrate) -> None:
    inner = (await let(fakes)).inner
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
ALL = 'echo "$A $S $DUTYFREE_OWNER"; cat /srv/config /dev/shm/keys/token'
SEEN = "bound hush ann\nplainhush-file"


async def test_on_a_cell_everything_that_is_opened_has_the_binding(cells: GuardedSubstrate) -> None:
    let_out = await let(cells, BOUND)
    box = let_out.box
    assert (await box.run(ALL)).text == SEEN
    assert (await box.run("stat -c %a /dev/shm/keys/token")).text == "600\n"
    async with box.session(env={"B": "own"}) as session:
        assert (await session.run(f"{ALL}; echo $B")).text == f"{SEEN}own\n"
    async with box.terminal(ALL) as terminal:
        data = b""
        while piece := await terminal.read():
            data += piece
        assert data.decode().replace("\r", "") == SEEN


async def test_on_a_cell_a_reset_by_the_tenant_keeps_what_the_lease_brought(cells: GuardedSubstrate) -> None:
    let_out = await let(cells, BOUND)
    staged: list[Sandbox] = []

    async def restore(sandbox: Sandbox) -> None:
        staged.append(sandbox)
        await sandbox.files.write("/srv/stage", b"again")

    box = boxed(let_out.inner, let_out.fence, let_out.lease, BOUND, cells.capabilities, restore)
    await box.run("echo dirt > /srv/dirt; rm /srv/config")
    await box.reset()
    assert staged == [let_out.inner]
    assert (await box.run(f"{ALL}; ls /srv")).text == f"{SEEN}config\nstage\n"


async def test_on_a_cell_half_a_reset_is_nobodys_sandbox(cells: GuardedSubstrate) -> None:
    let_out = await let(cells)

    async def restore(sandbox: Sandbox) -> None:
        raise LinkFailed("a stage failed")

    box = boxed(let_out.inner, let_out.fence, let_out.lease, BOUND, cells.capabilities, restore)
    with pytest.raises(LinkFailed):
        await box.reset()
    assert not let_out.inner.alive


async def test_on_a_cell_forks_are_of_the_same_lease(cells: GuardedSubstrate) -> None:
    let_out = await let(cells, BOUND)
    await let_out.box.run("echo forked > /srv/mine")
    forks = await let_out.box.fork(2)
    for fork in forks:
        assert (await fork.run(f"{ALL}; cat /srv/mine")).text == f"{SEEN}forked\n"
        await fork.run("rm -r /dev/shm/keys")
        await fork.reset()
        assert (await fork.run(f"{ALL}; cat /srv/mine")).text == f"{SEEN}forked\n"
    assert len(let_out.fence.forks) == 2
    await forks[0].destroy()
    assert len(let_out.fence.forks) == 1
    call = asyncio.create_task(forks[1].run(SLEEP))
    await asyncio.sleep(0.1)
    let_out.fence.end()
    assert await let_out.fence.drained(5.0)
    with pytest.raises(LeaseLost):
        await call
    (left,) = let_out.fence.forks
    assert left.alive
    await left.destroy()
    assert let_out.fence.forks == ()


async def test_on_a_cell_nothing_of_a_former_tenant_reaches_the_next(cells: GuardedSubstrate, tmp_path: Path) -> None:
    """Many calls of many kinds under way, the lease ends, the sandbox is reset, and the next tenant is alone in it."""
    let_out = await let(cells)
    box = let_out.box
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(50):
        (tree / str(number)).write_bytes(bytes(20_000))
    await box.files.upload(tree, "/opt/tree")
    opened = box.session()
    session = await opened.__aenter__()

    async def again(work: Callable[[int], Awaitable[object]]) -> None:
        number = 0
        while True:
            number += 1
            await work(number)

    works: list[Callable[[int], Awaitable[object]]] = [
        lambda number: box.run(f"echo x > /srv/run-{number}; sleep 0.01"),
        lambda number: box.files.write(f"/srv/write-{number}", b"x"),
        lambda number: box.files.upload(tree, f"/srv/upload-{number}"),
        lambda number: box.files.download("/opt/tree", tmp_path / f"download-{number}"),
        lambda number: session.run(f"echo x > /srv/session-{number}"),
    ]
    calls = [asyncio.create_task(again(work)) for work in works]
    await asyncio.sleep(0.3)
    let_out.fence.end()
    assert await let_out.fence.drained(10.0)
    await let_out.inner.reset()
    assert (await let_out.inner.run(Action("ls -A /srv"))).text == ""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, LeaseLost), outcome
    await asyncio.sleep(0.1)
    assert (await let_out.inner.run(Action("ls -A /srv"))).text == ""
    assert not session.alive
    await session.close()


def test_what_substrates_need_for_secret_files_is_a_capability() -> None:
    with pytest.raises(Unsupported, match="secret file"):
        BOUND.check(frozenset({Capability.FILES}))
    with pytest.raises(Unsupported, match="no files"):
        BOUND.check(frozenset())
    Binding(env={"A": "1"}, secrets={"S": "x"}).check(frozenset())
