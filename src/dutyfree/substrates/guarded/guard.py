"""What a guarded sandbox and everything opened in it share: whether it is alive, and how it is destroyed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import TracebackType

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, InfraFailed, SandboxGone, SubstrateFailed


class Guard:
    """Entered around each call: refuses it when the sandbox is gone, destroys the sandbox when the machinery fails.

    Destruction happens once for all callers, goes on when a caller is cancelled, has a deadline, and is tried again by
    the next call after a failure. Substrates do none of this themselves. `on_end` is called once, after the sandbox was
    destroyed.
    """

    def __init__(self, sandbox: Sandbox, destroy_timeout_s: float, on_end: Callable[[], None]) -> None:
        self._sandbox = sandbox
        self._destroy_timeout_s = destroy_timeout_s
        self._on_end = on_end
        self._destruction: asyncio.Future[None] | None = None
        """The end of the destruction that has begun last."""

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""
        return self._destruction is not None

    def check(self) -> None:
        """Raise SandboxGone if calls are refused."""
        if self._destruction is not None:
            raise SandboxGone(f"sandbox {self._sandbox.id} is gone")

    async def destroy(self) -> None:
        """Destroy the sandbox, or wait for the destruction under way. Raises SubstrateFailed."""
        await asyncio.shield(self.start_destruction())

    def start_destruction(self) -> asyncio.Future[None]:
        """Refuse calls from now on, and destroy the sandbox in the background. Returns the end of the destruction."""
        ended = self._destruction
        if ended is None or (ended.done() and ended.exception() is not None):
            loop = asyncio.get_running_loop()
            ended = self._destruction = loop.create_future()
            work = loop.create_task(self._sandbox.destroy())
            deadline = loop.call_later(self._destroy_timeout_s, self._late, work, ended)
            work.add_done_callback(functools.partial(self._ended, ended, deadline))
        return ended

    async def __aenter__(self) -> None:
        self.check()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InfraFailed | SandboxGone):
            await self.end_after(error)
        elif error is not None and not self._sandbox.alive:
            # A call that was cancelled half-way has left a sandbox that cannot go on.
            self.start_destruction()

    async def end_after(self, error: DutyfreeError) -> None:
        """Destroy the sandbox because of `error`, which is still the one that the caller gets."""
        try:
            await self.destroy()
        except SubstrateFailed as failure:
            error.add_note(f"and then its sandbox could not be destroyed: {failure}")

    def _late(self, work: asyncio.Task[None], ended: asyncio.Future[None]) -> None:
        """The destruction has taken too long: it fails now, also if it ignores its cancellation."""
        work.cancel()
        message = f"sandbox {self._sandbox.id} was not destroyed in {self._destroy_timeout_s:g} s"
        ended.set_exception(SubstrateFailed(message))

    def _ended(self, ended: asyncio.Future[None], deadline: asyncio.TimerHandle, work: asyncio.Task[None]) -> None:
        if ended.done():
            return
        deadline.cancel()
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if error is None:
            self._on_end()
            ended.set_result(None)
        elif isinstance(error, SubstrateFailed):
            ended.set_exception(error)
        else:
            failure = SubstrateFailed(f"sandbox {self._sandbox.id} was not destroyed: {error!r}")
            failure.__cause__ = error
            ended.set_exception(failure)
