"""Runs the blocking calls of a cloud driver in threads, one at a time, each with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed
from dutyfree.failure import on_failure

CALL_TIMEOUT_S: Final = 120.0
QUEUE_TIMEOUT_S: Final = 600.0
T = TypeVar("T")


class Calls:
    """The calls to one cloud driver, one at a time, because drivers are not thread-safe.

    A thread cannot be stopped: a call that timed out or was cancelled still runs to its end, and the next call waits.
    """

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` removes secrets from a driver's error message."""
        self._hide = hide
        self._lock = asyncio.Lock()
        self._running_calls: set[asyncio.Future[Any]] = set()
        self._late_calls: set[asyncio.Task[None]] = set()

    async def call(self, work: Callable[[], T], *, late: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run `work` in a thread and return its result.

        If the caller is cancelled or the call times out, `late` is called with the result when it arrives. If the
        caller is cancelled before `work` starts, `work` never runs; if it is cancelled later, this waits up to
        `CALL_TIMEOUT_S` for the end. Raises DeadlineExceeded; SubstrateFailed for the driver's errors; Dutyfree's own
        errors unchanged.
        """
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT_S):
                await self._lock.acquire()
        except TimeoutError:
            raise DeadlineExceeded(f"other calls to the cloud took more than {QUEUE_TIMEOUT_S:g} s") from None
        running = self._submit(work)
        try:
            done, _ = await asyncio.wait([running], timeout=CALL_TIMEOUT_S)
        except asyncio.CancelledError:
            await asyncio.wait([self._abandon(running, late)], timeout=CALL_TIMEOUT_S)
            raise
        if not done:
            self._abandon(running, late)
            raise DeadlineExceeded(f"the cloud did not answer within {CALL_TIMEOUT_S:g} s")
        error = running.exception()
        if error is None:
            return running.result()
        if isinstance(error, DutyfreeError) or not isinstance(error, Exception):
            raise error
        # Drivers' errors have no common base class, and may contain URLs with credentials: so no cause is chained.
        raise SubstrateFailed(f"the cloud refused: {type(error).__name__}: {self._hide(str(error)):.300}")

    async def settle(self, *, within_s: float) -> None:
        """Wait until no call runs, and all late results are handled. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(within_s):
                while busy := {*self._running_calls, *self._late_calls}:
                    await asyncio.wait(busy)
        except TimeoutError:
            raise DeadlineExceeded(f"the cloud did not answer all calls within {within_s:g} s") from None

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        def done(running: asyncio.Future[T]) -> None:
            self._running_calls.discard(running)
            self._lock.release()

        with on_failure(self._lock.release):
            running = asyncio.get_running_loop().run_in_executor(None, work)
        self._running_calls.add(running)
        running.add_done_callback(done)
        return running

    def _abandon(self, running: asyncio.Future[T], late: Callable[[T], Awaitable[None]] | None) -> asyncio.Task[None]:
        handling = asyncio.create_task(_handle_late(running, late))
        self._late_calls.add(handling)
        handling.add_done_callback(self._late_calls.discard)
        return handling


async def _handle_late(running: asyncio.Future[T], late: Callable[[T], Awaitable[None]] | None) -> None:
    await asyncio.wait([running])
    if not running.cancelled() and running.exception() is None and late is not None:
        with suppress(DutyfreeError):  # a machine that `late` could not destroy is destroyed when the substrate closes
            await late(running.result())
