"""Acquires that may be repeated: a second call with the same key waits for the same lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dutyfree.errors import InvalidRequest
from dutyfree.pool.grants import Grant
from dutyfree.pool.state import State

Name = tuple[str, str]
"""An owner, and a key of its own."""


@dataclass(slots=True)
class _Shared:
    task: asyncio.Task[Grant]
    state: State
    waiters: int = 0


class KeyedAcquires:
    """Acquires in progress that have a key. One without waiting callers is cancelled, and its lease is given up."""

    def __init__(self, give_up: Callable[[Grant], object]) -> None:
        self._give_up = give_up
        self._shared: dict[Name, _Shared] = {}

    def is_pending(self, name: Name) -> bool:
        """Whether an acquire of this name is in progress."""
        return name in self._shared

    async def join(
        self, name: Name, state: State, timeout_s: float, make: Callable[[], Coroutine[Any, Any, Grant]]
    ) -> Grant:
        """Wait, for as long as this caller wants to, for the acquire of this name; without one, `make` begins it.

        Raises InvalidRequest if that one wants another state, TimeoutError past the time, and as `make` does.
        """
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = _Shared(asyncio.create_task(make()), state)
            shared.task.add_done_callback(lambda task: self._done(name, task))
        elif shared.state != state:
            raise InvalidRequest(f"key {name[1]!r} stands for a lease on something else")
        shared.waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                grant = await asyncio.shield(shared.task)
        except BaseException:
            self._leave(shared)
            raise
        shared.waiters -= 1
        return grant

    def _leave(self, shared: _Shared) -> None:
        shared.waiters -= 1
        if shared.waiters:
            return
        if not shared.task.done():
            shared.task.cancel()
        elif not shared.task.cancelled() and shared.task.exception() is None:
            self._give_up(shared.task.result())  # it was granted at the last moment

    def _done(self, name: Name, task: asyncio.Task[Grant]) -> None:
        del self._shared[name]
        if not task.cancelled():
            task.exception()  # marks it as seen: callers that wait raise it themselves
