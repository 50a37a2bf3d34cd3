"""A paused cell ends like any other: by its destruction, with its lease, and with the process that made it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import LeaseLost
from dutyfree.model import Action, Capability, Resources, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate

HOST = textwrap.dedent("""
    import asyncio
    from dutyfree.model import Action, SandboxSpec
    from dutyfree.substrates.cell import CellSubstrate

    async def main():
        async with CellSubstrate() as substrate:
            sandbox = await substrate.create(SandboxSpec())
            await sandbox.run(Action("sleep 1000 >/dev/null 2>&1 &"))
            await sandbox.pause()
            print(sandbox.pid, substrate._spawner.pid, flush=True)
            await asyncio.sleep(100)

    asyncio.run(main())
""")


@pytest.fixture
async def substrate() -> object:
    async with CellSubstrate() as opened:
        if Capability.PAUSE not in opened.capabilities:
            pytest.skip("cells cannot be paused here")
        yield opened


def gone(pid: int, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def killed_host(*, spawner_too: bool) -> tuple[int, int]:
    """The processes of a paused cell and of its spawner, whose host was killed."""
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        cell, spawner = map(int, host.stdout.readline().split())
        if spawner_too:
            os.kill(spawner, signal.SIGKILL)
        host.kill()
    return cell, spawner


async def test_nothing_is_left_of_a_paused_cell_whose_host_was_killed(substrate: CellSubstrate) -> None:
    cell, spawner = await asyncio.to_thread(killed_host, spawner_too=False)
    assert await asyncio.to_thread(gone, cell, 5)
    assert await asyncio.to_thread(gone, spawner, 5)


async def test_the_next_substrate_ends_a_paused_cell_whose_spawner_was_killed_too(substrate: CellSubstrate) -> None:
    cell, _spawner = await asyncio.to_thread(killed_host, spawner_too=True)
    async with CellSubstrate():
        assert await asyncio.to_thread(gone, cell, 5)


async def test_forks_and_limits_stay_as_they_are(substrate: CellSubstrate) -> None:
    spec = SandboxSpec(resources=Resources(pids=64))
    async with await substrate.create(spec) as sandbox:
        for _ in range(3):
            await sandbox.pause()
            await sandbox.resume()
        seen = await sandbox.run(Action("for i in $(seq 100); do sleep 5 & done; wait", timeout_s=20))
        assert seen.pids_limited
        (fork,) = await sandbox.fork(1)
        await fork.pause()
        await fork.destroy()
        assert (await sandbox.run(Action("true"))).ok


async def test_without_limits_there_is_a_group_for_the_pause(substrate: CellSubstrate) -> None:
    free = SandboxSpec(resources=Resources(memory_bytes=None, pids=None))
    async with await substrate.create(free) as sandbox:
        await sandbox.pause()
        assert "dutyfree-" in groups_of(sandbox.pid or 0)
        await sandbox.resume()
        assert (await sandbox.run(Action("true"))).ok


@pytest.mark.parametrize("pool", [None, dutyfree.PoolOptions(sandboxes=2)], ids=["cold", "pool"])
async def test_a_lease_can_end_or_expire_while_its_sandbox_is_paused(
    substrate: CellSubstrate, pool: dutyfree.PoolOptions | None
) -> None:
    async with dutyfree.local("cell", pool=pool) as host:
        async with host.lease() as box:
            call = asyncio.create_task(box.run("sleep 60"))
            await asyncio.sleep(0.2)
            await box.pause()
            assert box.paused
        with pytest.raises(LeaseLost):
            await call
        box = await host.acquire(ttl_s=0.3)
        await box.pause()
        for _ in range(100):  # the pool looks for expired leases from time to time
            await asyncio.sleep(0.05 if box.alive else 0)
        with pytest.raises(LeaseLost):
            await box.resume()
        async with host.lease() as box:
            assert not box.paused
            assert (await box.run("echo hi")).text == "hi\n"


async def test_a_pause_under_a_fork_storm_and_a_destruction(substrate: CellSubstrate) -> None:
    sandbox = await substrate.create(SandboxSpec())
    await sandbox.run(Action("(while :; do (true &) ; done) >/dev/null 2>&1 &"))
    for _ in range(5):
        await sandbox.pause()
        await sandbox.resume()
    pausing = asyncio.create_task(sandbox.pause())
    await asyncio.sleep(0)
    await asyncio.wait_for(sandbox.destroy(), 5)
    await asyncio.wait([pausing])
    assert await asyncio.to_thread(gone, sandbox.pid or 0, 5)
