"""Calls of a substrate, each in a task of its own, for which callers wait a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class BoundedCall(Generic[T]):
    """Runs `work` in a task. Any number of callers can wait for its end; one that is cancelled does not stop it.

    At its deadline it is cancelled, and callers wait no longer, even if it ignores the cancellation. It wakes the
    callers in its last step: a callback of the task, or `asyncio.wait`, would do so one turn of the event loop later.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], deadlines: Deadlines) -> None:
        self._settled = asyncio.Event()
        self._deadlines = deadlines
        self.results: list[T] = []
        """What it has returned; empty if it has not."""
        self.error: BaseException | None = None
        """What it has raised; CancelledError also if it was cancelled."""
        self.late = False
        deadlines.add(self)
        self.task = asyncio.get_running_loop().create_task(self._run(work))

    async def settled(self) -> None:
        """Return at its end, or when it is late or was cancelled."""
        await self._settled.wait()

    def cancel(self) -> None:
        """Cancel it, unless it was cancelled because it is late. Its callers wait no longer."""
        if not self.late:
            self._deadlines.remove(self)
            self.task.cancel()
            self._settled.set()

    def overdue(self) -> None:
        """The deadline has come."""
        self.cancel()
        self.late = True

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            self.results.append(await work())
        except (Exception, asyncio.CancelledError) as error:
            self.error = error
        finally:
            self._deadlines.remove(self)
            self._settled.set()


class Deadlines:
    """The deadlines of calls that may all take equally long, so that the first call is always the first that is due.

    They share one timer, which rings when the first call that was there when it was set is due: nearly all calls end
    long before, and a timer for each would take time.
    """

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self._due_s: dict[BoundedCall[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: BoundedCall[Any]) -> None:
        """Call its `overdue` after `within_s`."""
        loop = asyncio.get_running_loop()
        self._due_s[call] = due_s = loop.time() + self.within_s
        if self._timer is None:
            self._timer = loop.call_at(due_s, self._ring, loop)

    def remove(self, call: BoundedCall[Any]) -> None:
        """It has ended. Does nothing if it was removed before."""
        self._due_s.pop(call, None)

    def close(self) -> None:
        """Stop the timer; calls have no deadline any more."""
        self._due_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._due_s:
            call, due_s = next(iter(self._due_s.items()))
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._ring, loop)
                return
            call.overdue()
