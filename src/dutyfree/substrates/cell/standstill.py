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
async def standstill(guest_pid: int, spawner_pid: int, cgroup: str | None) -> AsyncIterator[None]:
    """No process of the cell runs inside the block. `cgroup`: its group, on version 2, where the kernel can do it.

    Elsewhere they are stopped by a signal, which programs that watch for SIGCONT can notice afterwards.
    Raises CapacityError if they do not stop, SubstrateFailed if the guest is no child of the spawner any more.
    """
    if cgroup is not None and _can_freeze(cgroup):
        try:
            await _freeze(cgroup)
            yield
        finally:
            with contextlib.suppress(OSError):  # it is gone with the sandbox, which was destroyed meanwhile
                _write(cgroup, "0")
        return
    family = _Family(guest_pid, spawner_pid)
    try:
        await family.stop()
        yield
    finally:
        family.go_on()


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


class _Family:
    """The guest and all its descendants, on a machine that cannot freeze them.

    Between reading a process id and sending a signal to it, the process may die and its id become that of a process of
    the host. So signals go through a pidfd, whose process is first looked at: as long as it lives, its id is its own.
    """

    def __init__(self, guest_pid: int, spawner_pid: int) -> None:
        self._guest_pid = guest_pid
        self._spawner_pid = spawner_pid
        self._namespace: int | None = None
        """The pid namespace of the cell, once the guest was seen."""
        self._stopped: list[int] = []
        """Those that ran before, in the order of their stopping."""

    async def stop(self) -> None:
        """Stop all of them.

        A parent stands still before its children are stopped: it can start no more of them, and one that waits for a
        child of vfork can stand still only once that child has gone on. Orphans come to the guest at any moment, so it
        is done until two rounds have found the same processes, and all of them still.
        """
        deadline = time.monotonic() + WITHIN_S
        if not self._signal(self._guest_pid, 0):
            raise SubstrateFailed("the sandbox died while it was made to stand still")
        before: list[int] = []
        family = [self._guest_pid]
        while family != before:
            before, family = family, [self._guest_pid]
            for pid in family:
                if not _is_still(pid):
                    before = []
                    if not self._signal(pid, signal.SIGSTOP):  # it is gone; the next round does not find it
                        await _pause(deadline)
                        continue
                while not _is_still(pid):
                    await _pause(deadline)
                family += children(pid)

    def go_on(self) -> None:
        """Let those go on that were stopped."""
        for pid in reversed(self._stopped):  # children first: a shell must not see its job stopped
            self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> bool:
        """Send a signal to a process of the cell; False if there is none of this id. 0 only asks."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise CapacityError(f"a process of the sandbox cannot be stopped: {error.strerror}") from None
        try:
            if not self._is_ours(pid):
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        if number == signal.SIGSTOP:
            self._stopped.append(pid)
        return True

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is of the cell; one that may not be looked at is not."""
        try:
            namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
            if self._namespace is None and _parent(pid) == self._spawner_pid:
                self._namespace = namespace
        except OSError:
            return False
        return namespace == self._namespace


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def _is_still(pid: int) -> bool:
    """Whether none of its threads runs, not even in the kernel."""
    return all(_state(task) in _STILL for task in _tasks(pid))


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"
