"""Machines that were booted once and saved with their memory, for others to go on from.

A machine's memory is a file that it shares while it is being saved; those that go on from it map the file privately, so
that each has its own from the first write on, and none waits for it to be read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dutyfree import native
from dutyfree.errors import DeadlineExceeded, SubstrateFailed
from dutyfree.model import Network
from dutyfree.removal import remove_tree
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.vm import guest
from dutyfree.substrates.vm.base import Base, locked
from dutyfree.substrates.vm.plan import Hardware, Memory
from dutyfree.substrates.vm.ssh import run_there
from dutyfree.threads import in_thread

if TYPE_CHECKING:
    from dutyfree.substrates.vm.local import LocalNode

MAX_SAVED: Final = 8
"""Each holds some hundred MiB."""
SAVE_TIMEOUT_S: Final = 900.0
_TRANSFER_S: Final = 60.0
_POLL_S: Final = 0.01
_GOING: Final = ".going"
"""Ends the names of those that are being removed."""
_SETTLED: Final = "systemctl is-system-running --wait; sync"
Cold = Callable[[Hardware, str, Network, Marks, Memory | None], Awaitable["LocalNode"]]


class Boot(StrEnum):
    """Where a machine begins."""

    COLD = "cold"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved machine: its directory has everything, its keys included."""

    directory: Path

    @property
    def memory(self) -> Path:
        """The file that is its memory."""
        return self.directory / "memory"

    @property
    def state(self) -> Path:
        """What QEMU wrote of all the rest."""
        return self.directory / "state"

    @property
    def disk(self) -> Path:
        """For others to lie over."""
        return self.directory / "disk.qcow2"

    @property
    def seed(self) -> Path:
        """The directory that it saw as its second disk."""
        return self.directory / "seed"

    @property
    def key(self) -> Path:
        """The key that it lets in."""
        return self.directory / "key"

    @property
    def host_key_public(self) -> str:
        """The key by which it is known."""
        return (self.directory / "host_key.pub").read_text().strip()

    @property
    def machine_id(self) -> str:
        """That of the machine which was saved."""
        return (self.directory / "machine-id").read_text().strip()


class SavedMachines:
    """Those of one base, on disk, by what hardware they have. Any number of processes may use them at once."""

    def __init__(self, directory: Path, base: Base, accelerator: str, version: str, cold: Cold) -> None:
        self._directory = directory
        self._base = base
        self._accelerator = accelerator
        self._version = version
        self._cold = cold
        self._known: dict[Hardware, Saved] = {}
        self._turn = asyncio.Lock()

    async def get(self, hardware: Hardware) -> Saved:
        """The saved machine with this hardware; booted and saved if there is none yet. Raises as `create` does."""
        known = self._known.get(hardware)
        if known is not None and known.state.exists():
            _mark_used(known.directory)
            return known
        async with self._turn:
            place = self._directory / f"saved-{await self._key(hardware)}"
            if not place.exists():
                await self._saved_once(place, hardware)
            _mark_used(place)
            self._known[hardware] = Saved(place)
            return self._known[hardware]

    async def _key(self, hardware: Hardware) -> str:
        program = await asyncio.to_thread(native.guest_path().read_bytes)
        parts = (self._base.key, self._accelerator, self._version, hardware, hashlib.sha256(program).hexdigest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    async def _saved_once(self, place: Path, hardware: Hardware) -> None:
        lock = await locked(place.with_suffix(".lock"), within_s=SAVE_TIMEOUT_S)
        making = place.with_suffix(".making")
        try:
            if await in_thread(place.exists):
                return
            await in_thread(_make_room, self._directory)
            await in_thread(remove_tree, making)
            making.mkdir(mode=0o700)
            await self._save(making, hardware)
            making.rename(place)
        finally:
            await asyncio.shield(in_thread(remove_tree, making))
            lock.release(remove=True)

    async def _save(self, making: Path, hardware: Hardware) -> None:
        memory = Memory(making / "memory", shared=True)
        node = await self._cold(hardware, "dutyfree", Network.NONE, Marks(), memory)
        try:
            await guest.install(node.login)
            await run_there(node.login, _SETTLED, timeout_s=SAVE_TIMEOUT_S)
            await save(node.machine, making / "state")
            await node.machine.end()
            await in_thread(_take_over, node.directory, making)
        finally:
            await asyncio.shield(node.end())


async def save(machine: Machine, state: Path) -> None:
    """Write all but its memory, which is in a file already, to a new file. The machine stands still afterwards."""
    await machine.command("stop")
    await _give_up_memory(machine)
    await machine.command("migrate", uri=f"exec:exec cat > {shlex.quote(str(state))}")
    await _transferred(machine)


async def restore(machine: Machine, state_fd: int) -> None:
    """Let a machine that waits for it go on from what `save` wrote, a file that it inherited under this number."""
    await _give_up_memory(machine)
    await machine.command("migrate-incoming", uri=f"fd:{state_fd}")
    await _transferred(machine)
    await machine.command("cont")


async def _give_up_memory(machine: Machine) -> None:
    await machine.command("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])


async def _transferred(machine: Machine) -> None:
    try:
        async with asyncio.timeout(_TRANSFER_S):
            while (status := (await machine.command("query-migrate")).get("status")) != "completed":
                if status in ("failed", "cancelled"):
                    raise SubstrateFailed(f"QEMU could not save or restore the machine: {machine.last_words}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DeadlineExceeded(f"a machine was not saved or restored within {_TRANSFER_S:g} s") from None


def _take_over(directory: Path, making: Path) -> None:
    """What the saved machine was made of, without what was known of its address."""
    for name in ("disk.qcow2", "seed", "key", "key.pub", "host_key", "host_key.pub", "machine-id"):
        shutil.move(directory / name, making / name)


def _make_room(directory: Path) -> None:
    """Those that were not used for longest go; a machine that goes on from one keeps what it has open.

    Other processes may be at the same. A saved machine is either whole or, under its name, not there.
    """
    for place in directory.glob(f"saved-*{_GOING}"):  # whoever removed it was killed
        remove_tree(place)
    saved = sorted((path for path in directory.glob("saved-*") if not path.suffix), key=_used_ns)
    for place in saved[: max(0, len(saved) - MAX_SAVED + 1)]:
        going = place.with_suffix(_GOING)
        with suppress(OSError):
            place.rename(going)
        remove_tree(going)


def _mark_used(place: Path) -> None:
    with suppress(OSError):
        os.utime(place)


def _used_ns(place: Path) -> int:
    try:
        return place.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
