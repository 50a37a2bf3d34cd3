"""Keeps execs and snapshots of one container apart: an engine refuses the one while it does the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Standstill:
    """Any number may start something at a time, or one may take a snapshot."""

    def __init__(self) -> None:
        self._starting = 0
        self._still = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Start something inside; waits for a snapshot to be done."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._still)
            self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            await self._tell()

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Take a snapshot inside; waits for what is being started."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._still)
            self._still = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._starting)
            yield
        finally:
            self._still = False
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
