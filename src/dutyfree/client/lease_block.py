"""What `host.lease()` returns: a block, not a box."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NoReturn

from dutyfree.client.box import Box
from dutyfree.client.dropped import warn_of_dropped_block
from dutyfree.errors import InvalidRequest


class LeaseBlock(AbstractAsyncContextManager[Box]):
    """Calls `acquire` when it is entered, and closes the box when it is left. It can be entered once.

    A block that is dropped before it was left ends its lease, with a warning.
    """

    def __init__(self, acquire: Callable[[], Awaitable[Box]]) -> None:
        self._acquire: Callable[[], Awaitable[Box]] | None = acquire
        self._box: Box | None = None

    async def __aenter__(self) -> Box:
        acquire, self._acquire = self._acquire, None
        if acquire is None:
            raise InvalidRequest("this block of a lease was entered already", hint="call host.lease() for each block")
        self._loop = asyncio.get_running_loop()
        self._box = box = await acquire()
        return box

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    def __await__(self) -> Generator[Any, None, NoReturn]:
        """Raise InvalidRequest: an easy mistake, for which Python's own error names no remedy."""
        hint = "write `async with host.lease() as box:`, or `box = await host.acquire()` and `await box.close()`"
        raise InvalidRequest("host.lease() is a block, and cannot be awaited", hint=hint)

    def __del__(self) -> None:
        if self._box is not None and not self._loop.is_closed():
            close = self._box.close
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(close()))
            warn_of_dropped_block()
