"""One asynchronous function that several callers ask for at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


class SharedTask:
    """Runs `function` once for all callers.

    A caller that is cancelled does not stop it. After a failure, the next call runs it again.
    """

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task that runs it now, or that has run it with success."""
        if self._task is None or _has_failed(self._task):
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def wait(self) -> None:
        """Start it if need be, and wait for its end. Raises what it raises."""
        await asyncio.shield(self.start())

    async def _run(self) -> None:
        await self._function()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine to its end, even if this call is cancelled: a sandbox must not stay half-way."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
