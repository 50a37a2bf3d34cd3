"""Machines that are ready, image and all: made once for an image and its bounds, and multiplied for whoever asks again.

A saved machine that waits for its order serves every image; what comes after the order (mounting, starting the guest,
reading the first program through an emulated disk) is the larger part of a creation. A double has it behind it.
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
from dutyfree.substrates.qemu.snapshot import Frozen, Shelf

KEPT: Final = 4
"""Of some hundred MB each; those that were asked for last."""
_REMEMBERED: Final = 256

Kind = tuple[Path, Resources]


class Doubles:
    """One for each kind that was asked for twice; `make` saves a machine of a kind, and is called once for it.

    The first sandbox of a kind pays nothing for those that may never follow, and no sandbox waits for a double.
    """

    def __init__(self, make: Callable[[Path, Resources], Awaitable[Frozen]]) -> None:
        self._make = make
        self._shelf = Shelf()
        self._asked: OrderedDict[Kind, None] = OrderedDict()
        """For once."""
        self._known: OrderedDict[Kind, Frozen | asyncio.Task[None]] = OrderedDict()
        """Saved, or about to be, or not to be had."""

    def hold(self, device: Path, resources: Resources) -> Frozen | None:
        """The double of this kind, to be given back with `release`; None as long as there is none."""
        kind = (device, resources)
        if kind not in self._known:
            if kind not in self._asked:
                self._asked[kind] = None
                if len(self._asked) > _REMEMBERED:
                    self._asked.popitem(last=False)
                return None
            del self._asked[kind]
            self._known[kind] = asyncio.create_task(self._add(kind))
        self._known.move_to_end(kind)
        found = self._known[kind]
        return self._shelf.hold(found.name) if isinstance(found, Frozen) else None

    async def release(self, frozen: Frozen) -> None:
        """A machine that was waked up from it has ended."""
        await self._shelf.release(frozen)

    async def clear(self) -> None:
        """Nothing is made any more, and nothing kept."""
        known, self._known = list(self._known.values()), OrderedDict()
        for each in known:
            if isinstance(each, Frozen):
                await self.release(each)
            else:
                each.cancel()
                await asyncio.wait([each])

    async def _add(self, kind: Kind) -> None:
        with suppress(DutyfreeError):  # creations go on without it
            frozen = await self._make(*kind)
            self._shelf.put(frozen)
            if kind not in self._known:
                await self.release(frozen)
                return
            self._known[kind] = frozen
            while len(self._known) > KEPT:
                oldest = self._known.popitem(last=False)[1]
                if isinstance(oldest, Frozen):
                    await self.release(oldest)
