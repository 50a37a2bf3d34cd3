"""The fence between a tenant and its sandbox: it lets calls through only while the lease lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, LeaseLost


class Fence:
    """Entered around each call of a tenant. After `end`, every call raises LeaseLost, also those in progress.

    `end` cancels the calls in progress: none may take its next step in a sandbox that another tenant has by then. If
    such a call still returns an observation or raises an error, the tenant gets LeaseLost instead. Once `drained` says
    so, no call of the tenant is on its way into the sandbox; processes inside end with the reset or the destruction
    that follows.
    """

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._how: str | None = None
        self._calls: dict[asyncio.Task[Any], int] = {}
        """The tasks of calls in progress, with the number of cancellations that each had when it entered."""
        self._empty: asyncio.Future[None] | None = None
        self._forks: dict[Sandbox, None] = {}

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""
        return self._how is not None

    @property
    def busy(self) -> bool:
        """Whether a call of the tenant is in progress."""
        return bool(self._calls)

    @property
    def forks(self) -> tuple[Sandbox, ...]:
        """Living forks of the sandbox: to be destroyed when the lease has ended."""
        return tuple(fork for fork in self._forks if fork.alive)

    def end(self, how: str = "has ended") -> None:
        """Refuse calls from now on, and cancel those in progress. Idempotent."""
        if self._how is None:
            self._how = how
            if self._calls:
                self._empty = asyncio.get_running_loop().create_future()
            for task in self._calls:
                task.cancel()

    async def drained(self, within_s: float) -> bool:
        """Wait, after `end`, until no call is in progress; False if that takes too long: then destroy the sandbox."""
        if self._empty is not None:
            await asyncio.wait({self._empty}, timeout=within_s)
        return not self._calls

    def check(self) -> None:
        """Raise LeaseLost if calls are refused."""
        if self._how is not None:
            raise LeaseLost(f"lease {self._lease_id} {self._how}")

    def adopt(self, forks: Iterable[Sandbox]) -> None:
        """Remember forks, which are destroyed with the lease."""
        self._forks = {fork: None for fork in (*self._forks, *forks) if fork.alive}

    async def end_after(self, error: DutyfreeError) -> None:
        """Do nothing: a failure ends no lease, and the guard below has ended the sandbox."""

    async def __aenter__(self) -> None:
        self.check()
        task = asyncio.current_task()
        assert task is not None
        self._calls[task] = task.cancelling()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = self._calls.pop(task)
        if self._how is None:
            return
        if self._empty is not None and not self._calls and not self._empty.done():
            self._empty.set_result(None)
        if task.uncancel() > cancelled_before and isinstance(error, asyncio.CancelledError):
            return  # the tenant has cancelled the call, too
        raise LeaseLost(f"lease {self._lease_id} {self._how} while this call was in progress") from error
