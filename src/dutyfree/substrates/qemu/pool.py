"""Machines that were restored in advance, so that a creation does not wait for QEMU."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dutyfree.errors import DutyfreeError
from dutyfree.model import Resources
from dutyfree.substrates.qemu.body import RunningVM
from dutyfree.substrates.qemu.plan import Build

PoolKey = tuple[Build, Path, Resources]


class Pool:
    """Keeps up to `size` machines for the key that was requested last. `start` makes one machine."""

    def __init__(self, size: int, start: Callable[[Build, Path, Resources], Awaitable[RunningVM]]) -> None:
        self._size = size
        self._start = start
        self._key: PoolKey | None = None
        self._ready: deque[RunningVM] = deque()
        """Machines for the current key only."""
        self._filling: asyncio.Task[None] | None = None

    async def take(self, build: Build, device: Path, resources: Resources) -> RunningVM:
        """A ready machine for this key if the pool has one, else a new machine. Raises as `start` does."""
        key = (build, device, resources)
        if self._size == 0:
            return await self._start(*key)
        if self._key != key:
            await self._change(key)
        vm = await self._pop_ready(key) or await self._start(*key)
        # Another caller may have requested another key meanwhile.
        if self._key == key and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill(key))
        return vm

    async def clear(self) -> None:
        """Kill all ready machines. Raises SubstrateFailed."""
        await self._change(None)

    async def _pop_ready(self, key: PoolKey) -> RunningVM | None:
        while self._key == key and self._ready:
            vm = self._ready.popleft()
            if vm.machine.alive:
                return vm
            await vm.end()
        return None

    async def _fill(self, key: PoolKey) -> None:
        with suppress(DutyfreeError):  # the next `take` starts a machine itself, and raises the error
            while self._key == key and len(self._ready) < self._size:
                vm = await self._start(*key)
                if self._key != key:
                    await vm.end()
                    return
                self._ready.append(vm)

    async def _change(self, key: PoolKey | None) -> None:
        """Keep machines for this key from now on, and kill those of the former key, even if this call is cancelled."""
        self._key = key
        filling, self._filling = self._filling, None
        former, self._ready = self._ready, deque()
        await asyncio.shield(_end_all(filling, former))


async def _end_all(filling: asyncio.Task[None] | None, machines: deque[RunningVM]) -> None:
    if filling is not None:
        filling.cancel()
        await asyncio.wait([filling])
    outcomes = await asyncio.gather(*(each.end() for each in machines), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
