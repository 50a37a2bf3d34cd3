"""A call of a substrate, in a task of its own, for which callers wait a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedCall(Generic[T]):
    """Runs `work` in a task. Any number of callers can wait for its end; one that is cancelled does not stop it.

    After `within_s` it is cancelled, and callers wait no longer, even if it ignores the cancellation. It wakes the
    callers in its last step: a callback of the task, or `asyncio.wait`, would do so one turn of the event loop later.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], within_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()
        self._deadline = loop.call_later(within_s, self._overdue)
        self.results: list[T] = []
        """What it has returned; empty if it has not."""
        self.error: BaseException | None = None
        """What it has raised; CancelledError also if it was cancelled."""
        self.late = False
        self.task = loop.create_task(self._run(work))

    async def settled(self) -> None:
        """Return at its end, or when it is late or was cancelled."""
        await self._settled.wait()

    def cancel(self) -> None:
        """Cancel it, unless it was cancelled because it is late. Its callers wait no longer."""
        if not self.late:
            self._deadline.cancel()
            self.task.cancel()
            self._settled.set()

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            self.results.append(await work())
        except (Exception, asyncio.CancelledError) as error:
            self.error = error
        finally:
            self._deadline.cancel()
            self._settled.set()

    def _overdue(self) -> None:
        self.task.cancel()
        self.late = True
        self._settled.set()
