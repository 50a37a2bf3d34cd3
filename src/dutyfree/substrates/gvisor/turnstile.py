"""A turnstile: any number may be passing at a time, or one holds it shut and nobody is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turnstile:
    """For one event loop. Whoever wants it shut waits for those who are passing, and lets no more in meanwhile."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._passing = 0
        self._shut = False

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Pass, once it is not shut."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._shut)
            self._passing += 1
        try:
            yield
        finally:
            async with self._changed:
                self._passing -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Hold it shut."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._shut)
            self._shut = True
            try:
                await self._changed.wait_for(lambda: self._passing == 0)
            except BaseException:
                self._open()
                raise
        try:
            yield
        finally:
            async with self._changed:
                self._open()

    def _open(self) -> None:
        self._shut = False
        self._changed.notify_all()
