"""Standing still where the kernel cannot freeze a cell: signals reach its own processes, whatever became of an id."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate, standstill
from dutyfree.substrates.cell.sandbox import CellSandbox


@pytest.fixture
async def box() -> AsyncIterator[CellSandbox]:
    async with CellSubstrate() as cells, await cells.create(SandboxSpec()) as box:
        assert isinstance(box, CellSandbox)
        yield box


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the host."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def still(box: CellSandbox, guest_pid: int | None = None) -> object:
    return standstill.standstill(guest_pid or box.pid, box._cell.spawner_pid, None)


async def test_an_id_that_became_another_processs_is_left_alone(
    box: CellSandbox, bystander: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child whose id was read has died, and a process of the host has its id now."""
    running = asyncio.ensure_future(box.run(Action("sleep 30")))
    await asyncio.sleep(0.2)
    found, stale = standstill.children, [True]

    def with_a_stale_id(pid: int) -> list[int]:
        return [*found(pid), *([bystander] if pid == box.pid and stale and stale.pop() else [])]

    monkeypatch.setattr(standstill, "children", with_a_stale_id)
    (child,) = found(box.pid)
    async with still(box):  # type: ignore[attr-defined]
        assert not stale
        assert state(bystander) != "T"
        assert (state(box.pid), state(child)) == ("T", "T")
    assert state(bystander) != "T"
    assert state(child) != "T"
    running.cancel()


@pytest.mark.parametrize("other", ["a process of the host", "nobody"])
async def test_a_guest_that_is_none_is_not_stopped(box: CellSandbox, bystander: int, other: str) -> None:
    pid = {"a process of the host": bystander, "nobody": 2**22 + 1}[other]
    with pytest.raises(SubstrateFailed, match="died"):
        async with still(box, pid):  # type: ignore[attr-defined]
            pass
    assert state(bystander) != "T"
    assert (await box.run(Action("echo on"))).text == "on\n"


async def test_a_process_that_was_stopped_before_is_stopped_afterwards(box: CellSandbox) -> None:
    stopped = "until grep -q 'State:.T' /proc/$!/status; do :; done"
    await box.run(Action(f"sleep 30 > /dev/null 2>&1 & kill -STOP $!; {stopped}", timeout_s=10))
    (child,) = standstill.children(box.pid)
    assert state(child) == "T"
    async with still(box):  # type: ignore[attr-defined]
        assert state(box.pid) == "T"
    assert state(child) == "T"
    assert (await box.run(Action("echo on"))).text == "on\n"
