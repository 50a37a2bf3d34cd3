"""A snapshot of a microVM: the whole machine at one moment, of which others get the files and not the processes."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dutyfree.errors import DutyfreeError, InvalidRequest, Unsupported
from dutyfree.model import Image, Resources
from dutyfree.removal import remove_tree
from dutyfree.substrates.kept_snapshot import KeptSnapshot
from dutyfree.substrates.qemu import memory, saved
from dutyfree.substrates.qemu.body import Awake
from dutyfree.substrates.qemu.plan import clock
from dutyfree.substrates.qemu.refusals import wrap_os_errors
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.threads import in_thread
from dutyfree.wire.channel import Channel


@dataclass(slots=True)
class Frozen:
    """What machines can be waked up from, as long as somebody holds it: its snapshot, and each of those machines.

    A sandbox can thus be reset to the snapshot it was made from also after that was discarded.
    """

    name: str
    saved: Saved
    resources: Resources
    """Its bounds are part of it."""
    holders: int = 0

    @property
    def device(self) -> Path:
        """Its image: another name of the file, which stays whatever becomes of the others."""
        return self.saved.directory / "device"


class Shelf:
    """The frozen machines of one substrate, by the names of their layers."""

    def __init__(self) -> None:
        self._known: dict[str, Frozen] = {}

    def hold(self, name: str) -> Frozen:
        """One of them, to be given back with `release`. Raises InvalidRequest."""
        frozen = self._known.get(name)
        if frozen is None:
            raise InvalidRequest(f"there is no snapshot {name}", hint="it was discarded, or is another substrate's")
        frozen.holders += 1
        return frozen

    def put(self, frozen: Frozen) -> None:
        """Add one, held by whoever adds it."""
        frozen.holders += 1
        self._known[frozen.name] = frozen

    async def release(self, frozen: Frozen) -> None:
        """Let go; the last one removes it. Machines that were waked up from it have its files open, and keep them."""
        frozen.holders -= 1
        if frozen.holders == 0:
            self._known.pop(frozen.name, None)  # the shelf may have been cleared
            await in_thread(remove_tree, frozen.saved.directory)


async def freeze(awake: Awake, channel: Channel, directory: Path, name: str, resources: Resources) -> Frozen:
    """Save a running machine into `directory`, which is made. It stands still meanwhile, and then goes on.

    `channel` is its guest's. Nothing is left in the directory if this raises: SubstrateFailed, CapacityError,
    DeadlineExceeded.
    """
    state = Saved(awake.build, directory)
    frozen = Frozen(name, state, resources)
    with wrap_os_errors("a machine could not be saved"):
        try:
            await in_thread(_prepare, frozen, awake.device)
            channel.pause()
            try:
                await saved.stop(awake.machine, lambda: channel.untaken_bytes)
                await saved.save(awake.machine, state.devices)
                pid = awake.machine.pid
                await in_thread(memory.copy_memory, pid, awake.memory_fd, state.memory, shared=awake.shared)
            finally:
                with suppress(DutyfreeError):  # if it cannot go on, whoever talks to it learns so
                    await asyncio.shield(_go_on(awake, channel))
        except BaseException:
            await in_thread(remove_tree, directory)
            raise
    return frozen


def _prepare(frozen: Frozen, device: Path) -> None:
    frozen.saved.directory.mkdir(mode=0o700)
    os.link(device, frozen.device)


async def _go_on(awake: Awake, channel: Channel) -> None:
    try:
        await awake.machine.command("cont")
    finally:
        channel.resume()
    await awake.ports.tell(clock(time.time_ns()))  # its own stood still, too


class MicroVMSnapshot(KeptSnapshot):
    """Holds what is on the shelf, until it is discarded."""

    def __init__(self, frozen: Frozen, image: Image, shelf: Shelf) -> None:
        kept = replace(image, layers=(frozen.name,), over_host=False, reference="")
        super().__init__(frozen.name.removeprefix("live:"), kept)
        self._frozen = frozen
        self._shelf = shelf
        shelf.put(frozen)

    async def _put(self) -> Image:
        raise Unsupported("the snapshot of a microVM cannot be put into the image store", hint="build a recipe instead")

    async def _let_go(self) -> None:
        await self._shelf.release(self._frozen)
