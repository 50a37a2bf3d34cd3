"""Keeps execs and snapshots of one container apart: an engine refuses the one while it does the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Standstill:
    """Any number may start something at a time, or one may take a snapshot."""

    def __init__(self) -> None:
        self._starting = 0
        self._still = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Start something inside; waits for a snapshot to be done."""
        await self._until(lambda: not self._still)
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            self._tell()

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Take a snapshot inside; waits for what is being started."""
        await self._until(lambda: not self._still)
        self._still = True
        try:
            await self._until(lambda: not self._starting)
            yield
        finally:
            self._still = False
            self._tell()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _tell(self) -> None:
        """Wake all who wait. Nothing is awaited here: whoever leaves may have been cancelled."""
        self._changed.set()
        self._changed = asyncio.Event()
