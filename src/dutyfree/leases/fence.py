"""The fence between a tenant and its sandbox: it lets calls through only while the lease lasts."""

from __future__ import annotations

import asyncio
from asyncio import current_task
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, InfraFailed, InvalidRequest, LeaseLost


def another_loop(what: str) -> InvalidRequest:
    """The error for an object that is used on an event loop which is not its own: there, its calls would hang."""
    return InvalidRequest(
        f"{what} of another event loop was used",
        hint="use a host and its boxes on the loop that opened the host; objects of dutyfree.sync work in every thread",
    )


class Fence:
    """A context manager around each call of a tenant. After `end`, every call raises LeaseLost, also calls in progress.

    It waits for nothing, so that `with` is enough; as the gate of sessions and files it can be used in `async with`.

    `end` cancels the calls in progress, because their next step might run in the sandbox of another tenant. If such a
    call still returns an observation or raises an error, the tenant gets LeaseLost instead. When `drained` returns
    True, no call of the tenant can reach the sandbox any more. The reset or destruction that follows ends the processes
    inside.
    """

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._loop = asyncio.get_running_loop()
        self._how: str | None = None
        self._calls: dict[asyncio.Task[Any], int] = {}
        """The tasks of calls in progress, with the number of cancellations that each had when it entered."""
        self._empty: asyncio.Future[None] | None = None
        self._forks: dict[Sandbox, None] = {}
        self.failure: InfraFailed | None = None
        """The first failure of the infrastructure that a call of the tenant got."""

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""
        return self._how is not None

    @property
    def how(self) -> str:
        """How the lease has ended; empty while it lasts."""
        return self._how or ""

    @property
    def busy(self) -> bool:
        """Whether a call of the tenant is in progress."""
        return bool(self._calls)

    @property
    def forks(self) -> tuple[Sandbox, ...]:
        """Living forks of the sandbox, which the pool destroys when the lease ends."""
        return tuple(fork for fork in self._forks if fork.alive)

    def end(self, how: str = "has ended") -> None:
        """Refuse calls from now on, and cancel calls in progress. Idempotent."""
        if self._how is None:
            self._how = how
            if self._calls:
                self._empty = asyncio.get_running_loop().create_future()
            for task in self._calls:
                task.cancel()

    async def drained(self, within_s: float) -> bool:
        """Wait, after `end`, until no call is in progress. False after `within_s`: the sandbox must be destroyed."""
        if self._empty is not None:
            await asyncio.wait({self._empty}, timeout=within_s)
        return not self._calls

    def check(self) -> None:
        """Raise LeaseLost if calls are refused."""
        if self._how is not None:
            raise LeaseLost(f"lease {self._lease_id} {self._how}")

    def adopt(self, forks: Iterable[Sandbox]) -> None:
        """Record forks, so that they are destroyed when the lease ends."""
        self._forks = {fork: None for fork in (*self._forks, *forks) if fork.alive}

    async def end_after(self, error: DutyfreeError) -> None:
        """Do nothing: a failure does not end the lease, and the guard of the substrate has destroyed the sandbox."""

    def __enter__(self) -> None:
        if self._how is not None:
            self.check()
        task = current_task()
        assert task is not None
        if task.get_loop() is not self._loop:
            raise another_loop("a box")
        self._calls[task] = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = current_task()
        assert task is not None
        cancelled_before = self._calls.pop(task)
        if error is not None and self.failure is None and isinstance(error, InfraFailed):
            self.failure = error
        if self._how is not None:
            self._raise_lost(task, cancelled_before, error)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _raise_lost(self, task: asyncio.Task[Any], cancelled_before: int, error: BaseException | None) -> None:
        """Raise LeaseLost in a call during which the lease has ended."""
        if self._empty is not None and not self._calls and not self._empty.done():
            self._empty.set_result(None)
        if task.uncancel() > cancelled_before and isinstance(error, asyncio.CancelledError):
            return  # the tenant has also cancelled the call, and expects CancelledError
        raise LeaseLost(f"lease {self._lease_id} {self._how} while this call was in progress") from error
