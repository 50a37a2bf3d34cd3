"""Acquires with a key: a repeated call with the same key waits for the same lease, so that it can be retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dutyfree.errors import InvalidRequest
from dutyfree.pool.grants import Grant
from dutyfree.pool.state import State
from dutyfree.values import dataclass

Name = tuple[str, str]
"""The owner and its key. Two owners may use the same key for different leases."""


@dataclass(slots=True)
class _Shared:
    """One acquire, for which several callers may wait."""

    task: asyncio.Task[Grant]
    state: State
    waiters: int = 0


class KeyedAcquires:
    """Acquires in progress that have a key.

    When no caller waits for an acquire any more, it is cancelled; if it has been granted by then, `withdraw` ends the
    grant.
    """

    def __init__(self, withdraw: Callable[[Grant], object]) -> None:
        self._withdraw = withdraw
        self._shared: dict[Name, _Shared] = {}

    def is_pending(self, name: Name) -> bool:
        """Whether an acquire of this name is in progress."""
        return name in self._shared

    async def join(
        self, name: Name, state: State, timeout_s: float, make: Callable[[], Coroutine[Any, Any, Grant]]
    ) -> Grant:
        """Wait up to `timeout_s` for the acquire of this name. If there is none, begin one with `make`.

        Raises InvalidRequest if that acquire is for another state, TimeoutError after `timeout_s`, and as `make` does.
        """
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = _Shared(asyncio.create_task(make()), state)
            shared.task.add_done_callback(lambda task: self._done(name, task))
        elif shared.state != state:
            raise InvalidRequest(f"key {name[1]!r} belongs to a lease on another image or spec")
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
            self._withdraw(shared.task.result())  # the lease was granted just before the last caller left

    def _done(self, name: Name, task: asyncio.Task[Grant]) -> None:
        del self._shared[name]
        if not task.cancelled():
            task.exception()  # waiting callers raise it; reading it here keeps asyncio from logging it as unhandled
