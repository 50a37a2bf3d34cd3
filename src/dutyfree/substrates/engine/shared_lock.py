"""A lock that many tasks may share, or one task holds alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class SharedLock:
    """For one event loop. A task that wants it alone waits for those that share it; no other task gets it then."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._sharing = 0
        self._is_exclusive = False

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Share the lock with other tasks."""
        await self._until(lambda: not self._is_exclusive)
        self._sharing += 1
        try:
            yield
        finally:
            self._sharing -= 1
            self._notify()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        await self._until(lambda: not self._is_exclusive)
        self._is_exclusive = True
        try:
            await self._until(lambda: self._sharing == 0)
            yield
        finally:
            self._is_exclusive = False
            self._notify()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _notify(self) -> None:
        """Wake all waiters. Nothing is awaited here: the caller may have been cancelled."""
        self._changed.set()
        self._changed = asyncio.Event()
