"""Freezes all processes of a cell for as long as its owner wants, with the kernel's freezer of cgroups, v1 or v2."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.substrates.cell.standstill import STOP_TIMEOUT_S, ProcessTree, children, is_dead, wait_a_little


class Freezer:
    """The group in which a cell is frozen.

    A cell that has no group of its own yet is moved into this one, process by process, before the first freeze: cells
    that are never paused then cost nothing. Children are made in the group of their parent.
    """

    def __init__(self, group: str, guest_pid: int, spawner_pid: int) -> None:
        self._group = Path(group)
        self._guest_pid = guest_pid
        self._tree = ProcessTree(guest_pid, spawner_pid)
        self._ended = False

    async def freeze(self) -> None:
        """Return once all processes are frozen. Raises CapacityError if they do not stop, SubstrateFailed."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        try:
            while True:
                await self._gather(deadline)
                if self._ended:  # a write now would freeze processes that are being killed, and with v1 keep them
                    raise SubstrateFailed("the sandbox was destroyed while it was being paused")
                self._write(frozen=True)
                while not self._is_frozen():
                    await wait_a_little(deadline)
                if not self._outside():
                    return
                self.thaw()
        except OSError as error:
            raise SubstrateFailed(f"the sandbox died while it was being paused: {error.strerror}") from None

    def thaw(self) -> None:
        """Let all processes go on. A group that is gone needs nothing."""
        with contextlib.suppress(OSError):
            self._write(frozen=False)

    def end(self) -> None:
        """The cell is about to be killed: never freeze it again. The spawner thaws it after the kill."""
        self._ended = True

    async def _gather(self, deadline: float) -> None:
        if not self._tree.is_ours(self._guest_pid):
            raise SubstrateFailed("the sandbox died while it was being paused")
        while outside := self._outside():
            for pid in outside:
                if self._tree.is_ours(pid):
                    with contextlib.suppress(ProcessLookupError):
                        self._members_file.write_text(str(pid))
            self._expel()
            await wait_a_little(deadline)

    def _outside(self) -> list[int]:
        """The living processes of the cell that are not in the group."""
        members = self._members()
        tree = [self._guest_pid]
        for pid in tree:
            tree += children(pid)
        return [pid for pid in tree if pid not in members and not is_dead(pid)]

    def _expel(self) -> None:
        """Put back what got here by mistake: a process of the host that has the id of one that has just died."""
        for pid in self._members():
            if not self._tree.is_ours(pid) and not is_dead(pid):
                with contextlib.suppress(OSError):
                    (self._group.parent.parent / "cgroup.procs").write_text(str(pid))

    @property
    def _members_file(self) -> Path:
        return self._group / "cgroup.procs"

    def _members(self) -> set[int]:
        return set(map(int, self._members_file.read_text().split()))

    def _write(self, *, frozen: bool) -> None:
        if self._is_v2:
            (self._group / "cgroup.freeze").write_text("1" if frozen else "0")
        else:
            (self._group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    def _is_frozen(self) -> bool:
        if self._is_v2:
            return "frozen 1" in (self._group / "cgroup.events").read_text()
        return (self._group / "freezer.state").read_text().strip() == "FROZEN"

    @property
    def _is_v2(self) -> bool:
        return (self._group / "cgroup.freeze").exists()


def thaw_all(directory: Path) -> None:
    """Thaw every group below `directory`: with v1, a frozen process does not die before."""
    for inner, _names, files in os.walk(directory):
        if "freezer.state" in files:
            with contextlib.suppress(OSError):
                Path(inner, "freezer.state").write_text("THAWED")
