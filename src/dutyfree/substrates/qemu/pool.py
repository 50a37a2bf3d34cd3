"""Machines that were waked up in advance, so that a creation need not wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dutyfree.errors import DutyfreeError
from dutyfree.model import Resources
from dutyfree.substrates.qemu.body import Awake
from dutyfree.substrates.qemu.plan import Build

Kind = tuple[Build, Path, Resources]


class Pool:
    """Keeps up to `size` machines of the kind that was asked for last. `wake` makes one."""

    def __init__(self, size: int, wake: Callable[[Build, Path, Resources], Awaitable[Awake]]) -> None:
        self._size = size
        self._wake = wake
        self._kind: Kind | None = None
        self._ready: deque[Awake] = deque()
        """Of the current kind, all of them."""
        self._filling: asyncio.Task[None] | None = None

    async def take(self, build: Build, device: Path, resources: Resources) -> Awake:
        """A machine of this kind, one that waits if there is one. Raises as `wake` does."""
        kind = (build, device, resources)
        if self._size == 0:
            return await self._wake(*kind)
        if self._kind != kind:
            await self._change(kind)
        awake = await self._waiting(kind) or await self._wake(*kind)
        # Others may have asked for another kind meanwhile.
        if self._kind == kind and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill(kind))
        return awake

    async def clear(self) -> None:
        """End those that wait. Raises SubstrateFailed."""
        await self._change(None)

    async def _waiting(self, kind: Kind) -> Awake | None:
        while self._kind == kind and self._ready:
            awake = self._ready.popleft()
            if awake.machine.alive:
                return awake
            await awake.end()
        return None

    async def _fill(self, kind: Kind) -> None:
        with suppress(DutyfreeError):  # whoever needs one will be told why there is none
            while self._kind == kind and len(self._ready) < self._size:
                awake = await self._wake(*kind)
                if self._kind != kind:
                    await awake.end()
                    return
                self._ready.append(awake)

    async def _change(self, kind: Kind | None) -> None:
        """From now on, keep machines of this kind, and end those of another; also if this is cancelled."""
        self._kind = kind
        filling, self._filling = self._filling, None
        former, self._ready = self._ready, deque()
        await asyncio.shield(_ended(filling, former))


async def _ended(filling: asyncio.Task[None] | None, machines: deque[Awake]) -> None:
    if filling is not None:
        filling.cancel()
        await asyncio.wait([filling])
    outcomes = await asyncio.gather(*(each.end() for each in machines), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
