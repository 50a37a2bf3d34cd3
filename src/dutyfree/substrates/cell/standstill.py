"""Making a cell's processes stand still, so that what they write is of one moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dutyfree.errors import SubstrateFailed

WITHIN_S = 5.0
POLL_S = 0.001
_STILL = frozenset("TtZX")


def children(pid: int) -> list[int]:
    """The processes that a process has started, and those left to it; none if it is gone."""
    found: list[int] = []
    for task in _tasks(pid):  # the kernel tells apart which thread has started them
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_bytes().split())
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


@asynccontextmanager
async def standstill(guest_pid: int, cgroup: str | None) -> AsyncIterator[None]:
    """No process of the cell runs inside the block. `cgroup`: its group, on version 2, where the kernel can do it.

    Elsewhere they are stopped by a signal, which programs that watch for SIGCONT can notice afterwards.
    Raises SubstrateFailed if they do not stop.
    """
    if cgroup is not None:
        await _freeze(cgroup)
        try:
            yield
        finally:
            _write(cgroup, "0")
        return
    stopped = await _stop(guest_pid)
    try:
        yield
    finally:
        _resume(stopped)


async def _freeze(cgroup: str) -> None:
    _write(cgroup, "1")
    deadline = time.monotonic() + WITHIN_S
    while not _is_frozen(cgroup):
        if time.monotonic() > deadline:
            _write(cgroup, "0")
            raise SubstrateFailed(f"the sandbox's processes did not stop within {WITHIN_S:g} s")
        await asyncio.sleep(POLL_S)


def _is_frozen(cgroup: str) -> bool:
    return "frozen 1" in Path(cgroup, "cgroup.events").read_text()


def _write(cgroup: str, value: str) -> None:
    Path(cgroup, "cgroup.freeze").write_text(value)


async def _stop(guest_pid: int) -> list[int]:
    """Stop the guest and all its descendants; returns those that ran before, in the order in which they were stopped.

    A parent stands still before its children are stopped: it can start no more of them, and one that waits for a child
    of vfork can stand still only once that child has gone on.
    """
    stopped: list[int] = []
    deadline = time.monotonic() + WITHIN_S
    family = [guest_pid]
    try:
        for pid in family:
            if not _is_still(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)
            while not _is_still(pid):
                if time.monotonic() > deadline:
                    raise SubstrateFailed(f"the sandbox's processes did not stop within {WITHIN_S:g} s")
                await asyncio.sleep(POLL_S)
            family += children(pid)
    except BaseException:
        _resume(stopped)
        raise
    return stopped


def _resume(stopped: list[int]) -> None:
    for pid in reversed(stopped):  # children first: a shell must not see its job stopped
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _is_still(pid: int) -> bool:
    """Whether none of its threads runs, not even in the kernel."""
    return all(_state(task) in _STILL for task in _tasks(pid))


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"
