"""Clones of ready machines: one machine is saved for each image and bounds, and later sandboxes are restored from it.

A template (see `build_dir`) is saved before its order, so it serves every image. But the steps after the order take
most of a creation's time: mounting, starting the guest, reading the first program through an emulated disk. A clone
source is saved after these steps.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.model import Resources
from dutyfree.substrates.qemu.snapshot import Frozen, FrozenMachines

MAX_KEPT: Final = 4
"""How many clone sources are kept, the most recently used ones; each takes a few hundred MB."""
_MAX_REQUESTED: Final = 256

CloneKey = tuple[Path, Resources]
"""The image's device, and the bounds."""


class VMClones:
    """A cache of clone sources; `make` saves one.

    It makes a source in the background when a key is requested for the second time, so that a single sandbox does not
    pay for clones that nothing uses, and no sandbox waits for a source.
    """

    def __init__(self, make: Callable[[Path, Resources], Awaitable[Frozen]]) -> None:
        self._make = make
        self._frozen_machines = FrozenMachines()
        self._requested_once: OrderedDict[CloneKey, None] = OrderedDict()
        self._sources: OrderedDict[CloneKey, Frozen | asyncio.Task[None]] = OrderedDict()
        """A saved machine, or the task that makes it. The task stays if it failed, so that it is not tried again."""

    def hold(self, device: Path, resources: Resources) -> Frozen | None:
        """The clone source for this device and these bounds; None if there is none yet. Give it back with `release`."""
        key = (device, resources)
        if key not in self._sources:
            if key not in self._requested_once:
                self._requested_once[key] = None
                if len(self._requested_once) > _MAX_REQUESTED:
                    self._requested_once.popitem(last=False)
                return None
            del self._requested_once[key]
            self._sources[key] = asyncio.create_task(self._add(key))
        self._sources.move_to_end(key)
        found = self._sources[key]
        return self._frozen_machines.hold(found.name) if isinstance(found, Frozen) else None

    async def release(self, frozen: Frozen) -> None:
        """Give back a source, once the machine that was restored from it has ended."""
        await self._frozen_machines.release(frozen)

    async def clear(self) -> None:
        """Drop all sources, and cancel those that are being made."""
        sources, self._sources = list(self._sources.values()), OrderedDict()
        for each in sources:
            if isinstance(each, Frozen):
                await self.release(each)
            else:
                each.cancel()
                await asyncio.wait([each])

    async def _add(self, key: CloneKey) -> None:
        with suppress(DutyfreeError):  # without a source, creations restore the template
            frozen = await self._make(*key)
            self._frozen_machines.put(frozen)
            if key not in self._sources:
                await self.release(frozen)
                return
            self._sources[key] = frozen
            while len(self._sources) > MAX_KEPT:
                oldest = self._sources.popitem(last=False)[1]
                if isinstance(oldest, Frozen):
                    await self.release(oldest)
