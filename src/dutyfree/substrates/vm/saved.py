"""Machines that were booted once and saved with their memory, so that other machines are restored from them.

The saved machine writes its memory to a file. A restored machine maps that file privately (copy on write): it does not
wait until the file is read, and its writes do not change the file.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import shlex
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
from dutyfree.substrates.vm.base import Base, make_once
from dutyfree.substrates.vm.plan import Hardware, Memory
from dutyfree.substrates.vm.ssh import run_there
from dutyfree.threads import in_thread

if TYPE_CHECKING:
    from dutyfree.substrates.vm.local import LocalNode

MAX_SAVED: Final = 8
"""How many saved machines are kept; each takes a few hundred MiB."""
SAVE_TIMEOUT_S: Final = 900.0
_TRANSFER_S: Final = 60.0
_POLL_S: Final = 0.01
_REMOVING: Final = ".going"
"""The suffix of saved machines that are being removed."""
_WAIT_UNTIL_BOOTED: Final = "systemctl is-system-running --wait; sync"
Cold = Callable[[Hardware, str, Network, Marks, Memory | None], Awaitable["LocalNode"]]


class Boot(StrEnum):
    """How a machine starts: it boots, or it is restored from a saved machine."""

    COLD = "cold"
    RESTORE = "restore"


class Saved:
    """One saved machine. Its directory has all of its files, including its keys."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.memory = directory / "memory"
        """The file with the machine's memory."""
        self.state = directory / "state"
        """The file with the state of all other devices, written by QEMU."""
        self.disk = directory / "disk.qcow2"
        """The saved disk; restored machines have their own disks over it."""
        self.seed = directory / "seed"
        """The directory that the machine saw as its seed disk."""
        self.key = directory / "key"
        """The private key to log in with."""

    @property
    def host_key_public(self) -> str:
        """The public SSH host key of the machine."""
        return (self.directory / "host_key.pub").read_text().strip()

    @property
    def machine_id(self) -> str:
        """The machine id of the saved machine."""
        return (self.directory / "machine-id").read_text().strip()


class SavedMachines:
    """The saved machines of one base, on disk, by their hardware. Several processes may use them at once."""

    def __init__(self, directory: Path, base: Base, accelerator: str, version: str, cold: Cold) -> None:
        self._directory = directory
        self._base = base
        self._accelerator = accelerator
        self._version = version
        self._boot_cold = cold
        self._known: dict[Hardware, Saved] = {}
        self._lock = asyncio.Lock()

    async def get(self, hardware: Hardware) -> Saved:
        """The saved machine with this hardware. Boots and saves one if there is none. Raises as `create` does."""
        known = self._known.get(hardware)
        if known is not None and known.state.exists():
            _mark_used(known.directory)
            return known
        async with self._lock:
            place = self._directory / f"saved-{await self._key(hardware)}"
            if not place.exists():
                await make_once(place, functools.partial(self._save, hardware), within_s=SAVE_TIMEOUT_S)
            _mark_used(place)
            self._known[hardware] = Saved(place)
            return self._known[hardware]

    async def _key(self, hardware: Hardware) -> str:
        program = await asyncio.to_thread(native.guest_path().read_bytes)
        parts = (self._base.key, self._accelerator, self._version, hardware, hashlib.sha256(program).hexdigest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    async def _save(self, hardware: Hardware, making: Path) -> None:
        await in_thread(_make_room, self._directory)
        memory = Memory(making / "memory", shared=True)
        node = await self._boot_cold(hardware, "dutyfree", Network.NONE, Marks(), memory)
        try:
            await guest.install(node.login)
            await run_there(node.login, _WAIT_UNTIL_BOOTED, timeout_s=SAVE_TIMEOUT_S)
            await save(node.machine, making / "state")
            await node.machine.end()
            await in_thread(_move_files, node.directory, making)
        finally:
            await asyncio.shield(node.end())


async def save(machine: Machine, state: Path) -> None:
    """Stop the machine, and write its state to a new file, without the memory, which is in a file already."""
    await machine.command("stop")
    await _leave_memory_out(machine)
    await machine.command("migrate", uri=f"exec:exec cat > {shlex.quote(str(state))}")
    await _wait_for_migration(machine)


async def restore(machine: Machine, state_fd: int) -> None:
    """Load the state that `save` wrote into a waiting machine, and start it. QEMU has inherited `state_fd`."""
    await _leave_memory_out(machine)
    await machine.command("migrate-incoming", uri=f"fd:{state_fd}")
    await _wait_for_migration(machine)
    await machine.command("cont")


async def _leave_memory_out(machine: Machine) -> None:
    await machine.command("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])


async def _wait_for_migration(machine: Machine) -> None:
    try:
        async with asyncio.timeout(_TRANSFER_S):
            while (status := (await machine.command("query-migrate")).get("status")) != "completed":
                if status in ("failed", "cancelled"):
                    raise SubstrateFailed(f"QEMU could not save or restore the machine: {machine.stderr_tail}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DeadlineExceeded(f"a machine was not saved or restored within {_TRANSFER_S:g} s") from None


def _move_files(directory: Path, making: Path) -> None:
    """Move the saved machine's files, but not `known_hosts`, which has the address of this one machine."""
    for name in ("disk.qcow2", "seed", "key", "key.pub", "host_key", "host_key.pub", "machine-id"):
        shutil.move(directory / name, making / name)


def _make_room(directory: Path) -> None:
    """Remove the least recently used saved machines. Machines restored from them still have the files open.

    Other processes may do the same at the same time. A saved machine is renamed before it is removed, so that its name
    never refers to an incomplete one.
    """
    for place in directory.glob(f"saved-*{_REMOVING}"):  # the process that was removing it was killed
        remove_tree(place)
    saved = sorted((path for path in directory.glob("saved-*") if not path.suffix), key=_used_ns)
    for place in saved[: max(0, len(saved) - MAX_SAVED + 1)]:
        going = place.with_suffix(_REMOVING)
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
