"""Blocking work from async code: in a thread, never left behind, and told to stop when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from dutyfree.images.store import Store

T = TypeVar("T")
P = ParamSpec("P")
_TELL_S: Final = 0.05


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, from a thread. Cancelling this waits for its end: it may hold locks and files."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


async def counted(work: Callable[[Callable[[int], None]], T], tell: Callable[[int], None]) -> T:
    """The same for work that counts the bytes it deals with; `tell`, called here, learns of their sum now and then.

    When this is cancelled, the next count raises in the thread, so that the work ends soon.
    """
    counter = _Counter(asyncio.get_running_loop(), tell)
    running = asyncio.ensure_future(in_thread(work, counter))
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        counter.stop = True
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
    tell(counter.done_bytes)
    return result


async def stoppable(work: Callable[[Callable[[int], None]], T]) -> T:
    """The same where nobody wants to know how far it is: only so that it ends soon when this is cancelled."""
    return await counted(work, lambda _bytes: None)


@contextlib.asynccontextmanager
async def staged(store: Store) -> AsyncIterator[Path]:
    """A staging directory of the store, removed in a thread."""
    staging = contextlib.ExitStack()
    directory = staging.enter_context(store.staging())
    try:
        yield directory
    finally:
        error = sys.exc_info()
        await in_thread(staging.__exit__, *error)


class _Stopped(Exception):
    """Nobody waits for the work any more."""


class _Counter:
    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[int], None]) -> None:
        self._loop = loop
        self._tell = tell
        self.done_bytes = 0
        self._told_s = 0.0
        self.stop = False

    def __call__(self, count_bytes: int) -> None:
        if self.stop:
            raise _Stopped
        self.done_bytes += count_bytes
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            self._loop.call_soon_threadsafe(self._tell, self.done_bytes)
