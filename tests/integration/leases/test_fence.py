"""The fence around leases of cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import LeaseLost, LinkFailed
from dutyfree.leases.binding import Binding
from dutyfree.model import Action
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.substrates.guarded import GuardedSubstrate
from support.boxes import boxed, lease_sandbox

SLEEP = "sleep 30"
TRUE = ["true"]


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[GuardedSubstrate]:
    async with GuardedSubstrate(CellSubstrate(store=tmp_path / "store")) as substrate:
        yield substrate


async def test_after_the_end_every_call_says_so_and_touches_nothing(cells: GuardedSubstrate, tmp_path: Path) -> None:
    leased = await lease_sandbox(cells)
    before = [each.name for each in await leased.inner.files.list("/")]
    box = leased.box
    stream = box.stream("cat")
    async with stream:
        leased.fence.end("has expired")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: box.run(TRUE),
            lambda: box.session().__aenter__(),
            lambda: box.terminal("sh").__aenter__(),
            box.reset,
            box.snapshot,
            lambda: box.fork(2),
            lambda: box.start(TRUE),
            box.processes,
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
    assert leased.inner.alive
    assert [each.name for each in await leased.inner.files.list("/")] == before


BOUND = Binding(
    env={"A": "bound"},
    secrets={"S": "hush"},
    files={"/srv/config": b"plain"},
    secret_files={"/dev/shm/keys/token": "hush-file"},
)
ALL = 'echo "$A $S $DUTYFREE_OWNER"; cat /srv/config /dev/shm/keys/token'
SEEN = "bound hush ann\nplainhush-file"


async def test_on_a_cell_everything_that_is_opened_has_the_binding(cells: GuardedSubstrate) -> None:
    leased = await lease_sandbox(cells, BOUND)
    box = leased.box
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
    leased = await lease_sandbox(cells, BOUND)
    staged: list[Sandbox] = []

    async def restore(sandbox: Sandbox) -> None:
        staged.append(sandbox)
        await sandbox.files.write("/srv/stage", b"again")

    box = boxed(leased.inner, leased.fence, leased.lease, BOUND, cells.capabilities, restore)
    await box.run("echo dirt > /srv/dirt; rm /srv/config")
    await box.reset()
    assert staged == [leased.inner]
    assert (await box.run(f"{ALL}; ls /srv")).text == f"{SEEN}config\nstage\n"


async def test_on_a_cell_a_reset_that_fails_half_way_destroys_the_sandbox(cells: GuardedSubstrate) -> None:
    leased = await lease_sandbox(cells)

    async def restore(sandbox: Sandbox) -> None:
        raise LinkFailed("a stage failed")

    box = boxed(leased.inner, leased.fence, leased.lease, BOUND, cells.capabilities, restore)
    with pytest.raises(LinkFailed):
        await box.reset()
    assert not leased.inner.alive


async def test_on_a_cell_forks_are_of_the_same_lease(cells: GuardedSubstrate) -> None:
    leased = await lease_sandbox(cells, BOUND)
    await leased.box.run("echo forked > /srv/mine")
    forks = await leased.box.fork(2)
    for fork in forks:
        assert (await fork.run(f"{ALL}; cat /srv/mine")).text == f"{SEEN}forked\n"
        await fork.run("rm -r /dev/shm/keys")
        await fork.reset()
        assert (await fork.run(f"{ALL}; cat /srv/mine")).text == f"{SEEN}forked\n"
    assert len(leased.fence.forks) == 2
    await forks[0].destroy()
    assert len(leased.fence.forks) == 1
    call = asyncio.create_task(forks[1].run(SLEEP))
    await asyncio.sleep(0.1)
    leased.fence.end()
    assert await leased.fence.drained(5.0)
    with pytest.raises(LeaseLost):
        await call
    (left,) = leased.fence.forks
    assert left.alive
    await left.destroy()
    assert leased.fence.forks == ()


async def test_on_a_cell_nothing_of_a_former_tenant_reaches_the_next(cells: GuardedSubstrate, tmp_path: Path) -> None:
    """Many calls of many kinds under way, the lease ends, the sandbox is reset, and the next tenant is alone in it."""
    leased = await lease_sandbox(cells)
    box = leased.box
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
    leased.fence.end()
    assert await leased.fence.drained(10.0)
    await leased.inner.reset()
    assert (await leased.inner.run(Action("ls -A /srv"))).text == ""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, LeaseLost), outcome
    await asyncio.sleep(0.1)
    assert (await leased.inner.run(Action("ls -A /srv"))).text == ""
    assert not session.alive
    await session.close()
