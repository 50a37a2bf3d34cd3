"""A turnstile: any number may be passing at a time, or one holds it shut and nobody is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turnstile:
    """For one event loop. Whoever wants it shut waits for those who are passing, and lets no more in meanwhile."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._passing = 0
        self._shut = False

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Pass, once it is not shut."""
        await self._until(lambda: not self._shut)
        self._passing += 1
        try:
            yield
        finally:
            self._passing -= 1
            self._tell()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Hold it shut."""
        await self._until(lambda: not self._shut)
        self._shut = True
        try:
            await self._until(lambda: self._passing == 0)
            yield
        finally:
            self._shut = False
            self._tell()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _tell(self) -> None:
        """Wake all who wait. Nothing is awaited here: whoever leaves may have been cancelled."""
        self._changed.set()
        self._changed = asyncio.Event()
