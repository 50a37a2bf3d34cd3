"""Snapshots of microVMs: the whole machine is saved, but a sandbox made from it gets the files, not the processes."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dutyfree.errors import DutyfreeError, InvalidRequest, Unsupported
from dutyfree.failure import await_on_failure
from dutyfree.model import Image, Resources
from dutyfree.removal import remove_tree
from dutyfree.substrates.kept_snapshot import KeptSnapshot
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.qemu import memory, saved
from dutyfree.substrates.qemu.body import RunningVM
from dutyfree.substrates.qemu.plan import clock
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.threads import in_thread
from dutyfree.wire.channel import Channel


@dataclass(slots=True)
class Frozen:
    """A saved machine with a count of its holders: its snapshot, and each machine that was restored from it.

    Because machines hold it too, a sandbox can be reset to its snapshot even after the snapshot was discarded.
    """

    name: str
    saved: Saved
    resources: Resources
    """The bounds of the saved machine; a restored machine has the same."""
    holders: int = 0

    @property
    def device(self) -> Path:
        """A hard link to the image's device, so that the file stays when its other names are removed."""
        return self.saved.directory / "device"


class FrozenMachines:
    """The frozen machines of one substrate, by the names of their layers."""

    def __init__(self) -> None:
        self._by_name: dict[str, Frozen] = {}

    def hold(self, name: str) -> Frozen:
        """The machine of this name; the caller gives it back with `release`. Raises InvalidRequest."""
        frozen = self._by_name.get(name)
        if frozen is None:
            hint = "it was discarded, or belongs to another substrate"
            raise InvalidRequest(f"there is no snapshot {name}", hint=hint)
        frozen.holders += 1
        return frozen

    def put(self, frozen: Frozen) -> None:
        """Add a machine. The caller holds it, and gives it back with `release`."""
        frozen.holders += 1
        self._by_name[frozen.name] = frozen

    async def release(self, frozen: Frozen) -> None:
        """Remove a holder. The last one to leave removes the files; running machines still have them open."""
        frozen.holders -= 1
        if frozen.holders == 0:
            self._by_name.pop(frozen.name, None)  # absent if the substrate was closed meanwhile
            await in_thread(remove_tree, frozen.saved.directory)


async def freeze(vm: RunningVM, channel: Channel, directory: Path, name: str, resources: Resources) -> Frozen:
    """Save a running machine to the new `directory`. The machine is stopped meanwhile, and then continues.

    `channel` is the channel to its guest. Raises SubstrateFailed, CapacityError, DeadlineExceeded; the directory is
    removed then.
    """
    state = Saved(vm.build, directory)
    frozen = Frozen(name, state, resources)
    with wrap_os_errors("a machine could not be saved"):
        async with await_on_failure(in_thread, remove_tree, directory):
            await in_thread(_prepare, frozen, vm.device)
            channel.pause()
            try:
                await saved.stop(vm.machine, lambda: channel.untaken_bytes)
                await saved.save(vm.machine, state.devices)
                pid = vm.machine.pid
                await in_thread(memory.copy_memory, pid, vm.memory_fd, state.memory, shared=vm.shared)
            finally:
                with suppress(DutyfreeError):  # if the machine cannot continue, the next action fails with the cause
                    await asyncio.shield(_continue(vm, channel))
    return frozen


def _prepare(frozen: Frozen, device: Path) -> None:
    frozen.saved.directory.mkdir(mode=0o700)
    os.link(device, frozen.device)


async def _continue(vm: RunningVM, channel: Channel) -> None:
    try:
        await vm.machine.command("cont")
    finally:
        channel.resume()
    await vm.ports.send(clock(time.time_ns()))  # the machine's own clock stood still while it was stopped


class MicroVMSnapshot(KeptSnapshot):
    """Holds a frozen machine until the snapshot is discarded."""

    def __init__(self, frozen: Frozen, image: Image, frozen_machines: FrozenMachines) -> None:
        kept = replace(image, layers=(frozen.name,), over_host=False, reference="")
        super().__init__(frozen.name.removeprefix("live:"), kept)
        self._frozen = frozen
        self._frozen_machines = frozen_machines
        frozen_machines.put(frozen)

    async def _put(self) -> Image:
        raise Unsupported("the snapshot of a microVM cannot be put into the image store", hint="build a recipe instead")

    async def _let_go(self) -> None:
        await self._frozen_machines.release(self._frozen)
