"""Snapshots of cells that have sparse files: quick, or refused, and they can be cancelled."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Resources, SandboxSpec, Writes
from dutyfree.substrates.cell import CellSubstrate

MIB, GIB, EIB = 2**20, 2**30, 2**60
SOON_S = 2.0


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[CellSubstrate]:
    async with CellSubstrate(store=tmp_path / "store") as substrate:
        yield substrate


async def begin(box: Sandbox, line: str) -> asyncio.Task[object]:
    """Something that runs, so that a snapshot has to copy."""
    assert (await box.run(Action(line))).exit_code == 0
    return asyncio.ensure_future(box.run(Action("sleep 100")))


async def ends_soon(task: asyncio.Task[object]) -> None:
    await asyncio.sleep(0.5)
    assert not task.done()
    start = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - start < SOON_S


async def test_a_sandbox_survives_a_file_that_no_snapshot_can_hold(cells: CellSubstrate) -> None:
    async with await cells.create(SandboxSpec()) as box:
        running = await begin(box, "truncate -s 7E /tmp/huge")
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="tmp/huge"):
                await box.snapshot()
            assert (await box.run(Action("echo alive"))).text == "alive\n"
        await box.run(Action("rm /tmp/huge"))
        await (await box.snapshot()).discard()
        running.cancel()


async def test_a_snapshot_of_holes_is_quick_and_its_saving_can_be_cancelled(cells: CellSubstrate) -> None:
    async with await cells.create(SandboxSpec()) as box:
        running = await begin(box, "truncate -s 60G /tmp/holes; echo x >> /tmp/holes")
        start = time.monotonic()
        async with await box.snapshot() as snapshot:
            assert time.monotonic() - start < SOON_S
            await ends_soon(asyncio.ensure_future(snapshot.save()))
        running.cancel()


async def test_a_snapshot_of_much_data_can_be_cancelled(cells: CellSubstrate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 20 MB/s would take 10 s for it."""
    copy = os.copy_file_range

    def slowly(*args: int) -> int:
        time.sleep(min(args[2], 64 * MIB) / (20 * MIB))
        return copy(*args)

    monkeypatch.setattr(os, "copy_file_range", slowly)
    spec = SandboxSpec(writes=Writes.DISK, resources=Resources(disk_bytes=None))
    async with await cells.create(spec) as box:
        running = await begin(box, "head -c 200M /dev/zero > /tmp/data")
        await ends_soon(asyncio.ensure_future(box.snapshot()))
        assert (await box.run(Action("echo alive"))).text == "alive\n"
        running.cancel()
