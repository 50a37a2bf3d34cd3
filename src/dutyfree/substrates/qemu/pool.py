"""Machines that were waked up in advance, so that a creation need not wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dutyfree.errors import DutyfreeError
from dutyfree.substrates.qemu.body import Awake
from dutyfree.substrates.qemu.plan import Build

Kind = tuple[Build, Path]


class Pool:
    """Keeps up to `size` machines of the kind that was asked for last. `wake` makes one."""

    def __init__(self, size: int, wake: Callable[[Build, Path], Awaitable[Awake]]) -> None:
        self._size = size
        self._wake = wake
        self._kind: Kind | None = None
        self._ready: deque[Awake] = deque()
        self._filling: asyncio.Task[None] | None = None

    async def take(self, build: Build, device: Path) -> Awake:
        """A machine of this kind, one that waits if there is one. Raises as `wake` does."""
        if self._size == 0:
            return await self._wake(build, device)
        if self._kind != (build, device):
            await self.clear()
            self._kind = (build, device)
        awake = None
        while self._ready and awake is None:
            awake = self._ready.popleft()
            if not awake.machine.alive:
                await awake.end()
                awake = None
        if awake is None:
            awake = await self._wake(build, device)
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill(build, device))
        return awake

    async def _fill(self, build: Build, device: Path) -> None:
        with suppress(DutyfreeError):  # whoever needs one will be told why there is none
            while len(self._ready) < self._size:
                self._ready.append(await self._wake(build, device))

    async def clear(self) -> None:
        """End those that wait."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
            self._filling = None
        while self._ready:
            await self._ready.popleft().end()
