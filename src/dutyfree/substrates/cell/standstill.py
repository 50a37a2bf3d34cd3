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

from dutyfree.errors import CapacityError, SubstrateFailed

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
    Raises CapacityError if they do not stop, SubstrateFailed.
    """
    if cgroup is not None and _can_freeze(cgroup):
        try:
            await _freeze(cgroup)
            yield
        finally:
            with contextlib.suppress(OSError):  # it is gone with the sandbox, which was destroyed meanwhile
                _write(cgroup, "0")
        return
    stopped: list[int] = []
    try:
        await _stop(guest_pid, stopped)
        yield
    finally:
        for pid in reversed(stopped):  # children first: a shell must not see its job stopped
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _can_freeze(cgroup: str) -> bool:
    return Path(cgroup, "cgroup.freeze").exists()


async def _freeze(cgroup: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    try:
        _write(cgroup, "1")
        while not _is_frozen(cgroup):
            await _pause(deadline)
    except OSError as error:
        raise SubstrateFailed(f"the sandbox died while it was made to stand still: {error.strerror}") from None


async def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        hint = "one of them waits for something in the kernel; try again when it does not"
        raise CapacityError(f"the sandbox's processes did not stand still within {WITHIN_S:g} s", hint=hint)
    await asyncio.sleep(POLL_S)


def _is_frozen(cgroup: str) -> bool:
    return "frozen 1" in Path(cgroup, "cgroup.events").read_text()


def _write(cgroup: str, value: str) -> None:
    Path(cgroup, "cgroup.freeze").write_text(value)


async def _stop(guest_pid: int, stopped: list[int]) -> None:
    """Stop the guest and all its descendants; `stopped` gets those that ran before, in the order of their stopping.

    A parent stands still before its children are stopped: it can start no more of them, and one that waits for a child
    of vfork can stand still only once that child has gone on. Orphans come to the guest at any moment, so it is done
    until two rounds have found the same processes, and all of them still.
    """
    deadline = time.monotonic() + WITHIN_S
    before: list[int] = []
    family = [guest_pid]
    while family != before:
        before, family = family, [guest_pid]
        for pid in family:
            if not _is_still(pid):
                before = []
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)
            while not _is_still(pid):
                await _pause(deadline)
            family += children(pid)


def _is_still(pid: int) -> bool:
    """Whether none of its threads runs, not even in the kernel."""
    return all(_state(task) in _STILL for task in _tasks(pid))


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"
