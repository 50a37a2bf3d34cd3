"""Blocking work in a thread, from async code. Cancelling waits for the thread, which may hold locks and files."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
_REPORT_EVERY_S: Final = 0.05


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises, from a thread. Cancelling this waits until the work has ended."""
    return await _awaited(asyncio.to_thread(work, *args, **kwargs), on_cancel=lambda: None)


async def in_thread_with_progress(work: Callable[[Callable[[int], None]], T], on_bytes: Callable[[int], None]) -> T:
    """The same for work that counts its bytes by calling its argument; `on_bytes`, called in the loop, gets their sum.

    When this is cancelled, the work's next count raises in the thread, so that it ends soon.
    """
    counter = _Counter(asyncio.get_running_loop(), on_bytes)
    result = await _awaited(asyncio.to_thread(work, counter), on_cancel=counter.stop)
    on_bytes(counter.done_bytes)
    return result


async def in_thread_stoppable(work: Callable[[Callable[[int], None]], T]) -> T:
    """The same without progress: the work ends soon when this is cancelled."""
    return await in_thread_with_progress(work, lambda _bytes: None)


@contextlib.asynccontextmanager
async def exit_in_thread(context: contextlib.AbstractContextManager[T]) -> AsyncIterator[T]:
    """A context that is entered at once and left in a thread: removing what it holds may take long."""
    value = context.__enter__()
    try:
        yield value
    finally:
        await in_thread(context.__exit__, *sys.exc_info())


async def _awaited(work: Coroutine[Any, Any, T], on_cancel: Callable[[], None]) -> T:
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        on_cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


class _Stopped(Exception):
    """The caller was cancelled."""


class _Counter:
    def __init__(self, loop: asyncio.AbstractEventLoop, on_bytes: Callable[[int], None]) -> None:
        self._loop = loop
        self._on_bytes = on_bytes
        self._reported_s = 0.0
        self._stopped = False
        self.done_bytes = 0

    def stop(self) -> None:
        self._stopped = True

    def __call__(self, count_bytes: int) -> None:
        if self._stopped:
            raise _Stopped
        self.done_bytes += count_bytes
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            self._loop.call_soon_threadsafe(self._on_bytes, self.done_bytes)
