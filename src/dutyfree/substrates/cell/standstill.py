"""Stops all processes of a cell for a while, so that a copy of its files is consistent."""

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

STOP_TIMEOUT_S = 5.0
POLL_S = 0.001
_STILL = frozenset("TtZX")


def children(pid: int) -> list[int]:
    """The child processes of a process, including adopted orphans; empty if the process is gone."""
    found: list[int] = []
    for task in _tasks(pid):  # the kernel lists children separately for each thread
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
    """Stop all processes of the cell during the block.

    `cgroup`: the cell's group, with cgroup version 2: the kernel freezes it. Without it, the processes are stopped by
    SIGSTOP; a program with a handler for SIGCONT notices this afterwards. Raises CapacityError if they do not stop,
    SubstrateFailed if the guest is not a child of the spawner any more.
    """
    if cgroup is not None and _can_freeze(cgroup):
        try:
            await _freeze(cgroup)
            yield
        finally:
            with contextlib.suppress(OSError):  # the sandbox was destroyed meanwhile, and its group removed
                _write(cgroup, "0")
        return
    tree = ProcessTree(guest_pid, spawner_pid)
    try:
        await tree.stop()
        yield
    finally:
        tree.resume()


def _can_freeze(cgroup: str) -> bool:
    return Path(cgroup, "cgroup.freeze").exists()


async def _freeze(cgroup: str) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    try:
        _write(cgroup, "1")
        while not _is_frozen(cgroup):
            await wait_a_little(deadline)
    except OSError as error:
        raise SubstrateFailed(f"the sandbox died while its processes were being stopped: {error.strerror}") from None


async def wait_a_little(deadline: float) -> None:
    """Sleep for a moment. Raises CapacityError past the deadline."""
    if time.monotonic() > deadline:
        hint = "a process is blocked in the kernel; try again later"
        raise CapacityError(f"the sandbox's processes did not stop within {STOP_TIMEOUT_S:g} s", hint=hint)
    await asyncio.sleep(POLL_S)


def _is_frozen(cgroup: str) -> bool:
    return "frozen 1" in Path(cgroup, "cgroup.events").read_text()


def _write(cgroup: str, value: str) -> None:
    Path(cgroup, "cgroup.freeze").write_text(value)


class ProcessTree:
    """The guest and all its descendants, on a machine that cannot freeze cgroups.

    After a process id is read and before a signal is sent, the process may die, and a process of the host may get its
    id. So each signal is sent through a pidfd, after a check that the pidfd's process belongs to the cell.
    """

    def __init__(self, guest_pid: int, spawner_pid: int) -> None:
        self._guest_pid = guest_pid
        self._spawner_pid = spawner_pid
        self._namespace: int | None = None
        """The pid namespace of the cell; None until the guest was checked."""
        self._stopped: list[int] = []
        """The processes that were stopped here, in that order."""

    async def stop(self) -> None:
        """Stop all processes.

        A parent is stopped before its children, so that it cannot start more of them. A parent in vfork() stops only
        after its child has called exec() or exited, so the child must still run then. The guest may adopt orphans at
        any moment, so the rounds go on until two rounds find the same processes, and all of them are stopped.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        if not self._signal(self._guest_pid, 0):
            raise SubstrateFailed("the sandbox died while its processes were being stopped")
        before: list[int] = []
        tree = [self._guest_pid]
        while tree != before:
            before, tree = tree, [self._guest_pid]
            for pid in tree:
                if not _is_still(pid):
                    before = []
                    if not self._signal(pid, signal.SIGSTOP):  # the process is gone; the next round will not find it
                        await wait_a_little(deadline)
                        continue
                while not _is_still(pid):
                    await wait_a_little(deadline)
                tree += children(pid)

    def resume(self) -> None:
        """Continue the processes that were stopped here."""
        for pid in reversed(self._stopped):  # children first: a shell must not see its job stopped
            self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> bool:
        """Send a signal to a process of the cell; False if the cell has no such process. Signal 0 only checks."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise CapacityError(f"a process of the sandbox cannot be stopped: {error.strerror}") from None
        try:
            if not self.is_ours(pid):
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        if number == signal.SIGSTOP:
            self._stopped.append(pid)
        return True

    def is_ours(self, pid: int) -> bool:
        """Whether a process belongs to the cell; False if it cannot be inspected."""
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
    """Whether all threads of a process are stopped or dead, so that none runs, not even in the kernel."""
    return all(_state(task) in _STILL for task in _tasks(pid))


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def is_dead(pid: int) -> bool:
    """Whether a process has ended; one that was not waited for yet counts as dead."""
    return _state(Path(f"/proc/{pid}")) in "ZX"
