"""The blocking calls of a cloud's driver: in threads, one at a time, and each within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed

CALL_TIMEOUT_S: Final = 120.0
TURN_TIMEOUT_S: Final = 600.0
T = TypeVar("T")


class Calls:
    """Drivers are not made for many calls at once. What was begun goes on and has its turn until it is really done."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` takes out of a driver's words what nobody may read."""
        self._hide = hide
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._abandoned: set[asyncio.Task[None]] = set()

    async def call(self, work: Callable[[], T], *, late: Callable[[T], Awaitable[None]] | None = None) -> T:
        """What `work` returns. If nobody waits for it any more, `late` deals with it when it comes after all.

        Cancelled before its turn, nothing was begun; afterwards, this waits for its end as long as for an answer.
        Raises DeadlineExceeded; SubstrateFailed for what the driver raises; errors of our own as they are.
        """
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._turn.acquire()
        except TimeoutError:
            raise DeadlineExceeded(f"the cloud was busy with other calls for {TURN_TIMEOUT_S:g} s") from None
        running = self._begun(work)
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
        # A driver's errors have no common root, and may tell addresses with credentials in them: none is passed on.
        raise SubstrateFailed(f"the cloud refused: {type(error).__name__}: {self._hide(str(error)):.300}")

    async def settle(self, *, within_s: float) -> None:
        """Return when nothing is under way any more, late results included. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(within_s):
                while busy := {*self._under_way, *self._abandoned}:
                    await asyncio.wait(busy)
        except TimeoutError:
            raise DeadlineExceeded(f"the cloud did not answer all calls within {within_s:g} s") from None

    def _begun(self, work: Callable[[], T]) -> asyncio.Future[T]:
        def done(running: asyncio.Future[T]) -> None:
            self._under_way.discard(running)
            self._turn.release()

        try:
            running = asyncio.get_running_loop().run_in_executor(None, work)
        except BaseException:
            self._turn.release()
            raise
        self._under_way.add(running)
        running.add_done_callback(done)
        return running

    def _abandon(self, running: asyncio.Future[T], late: Callable[[T], Awaitable[None]] | None) -> asyncio.Task[None]:
        seeing = asyncio.create_task(_seen_to(running, late))
        self._abandoned.add(seeing)
        seeing.add_done_callback(self._abandoned.discard)
        return seeing


async def _seen_to(running: asyncio.Future[T], late: Callable[[T], Awaitable[None]] | None) -> None:
    await asyncio.wait([running])
    if not running.cancelled() and running.exception() is None and late is not None:
        with suppress(DutyfreeError):  # what could not be dealt with is found when the substrate closes
            await late(running.result())
