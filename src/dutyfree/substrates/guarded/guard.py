"""What a guarded sandbox and everything opened in it share: whether it is alive, and how it is destroyed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, InfraFailed, SandboxGone, SubstrateFailed
from dutyfree.substrates.guarded.bounded import BoundedCall, Deadlines


class Guard:
    """Entered around each call: refuses it when the sandbox is gone, destroys the sandbox when the machinery fails.

    Destruction happens once for all callers, goes on when a caller is cancelled, has a deadline, and is tried again by
    the next call after a failure. Substrates do none of this themselves. `on_end` is called with the sandbox, after
    it was destroyed.
    """

    def __init__(self, sandbox: Sandbox, deadlines: Deadlines, on_end: Callable[[Sandbox], object]) -> None:
        self._sandbox = sandbox
        self._deadlines = deadlines
        self._on_end = on_end
        self._destruction: BoundedCall[None] | None = None
        """The destruction that has begun last."""

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
        destruction = self.start_destruction()
        await destruction.settled()
        if (failure := self._failure(destruction)) is not None:
            raise failure

    def start_destruction(self) -> BoundedCall[None]:
        """Refuse calls from now on, and destroy the sandbox in the background."""
        begun = self._destruction
        if begun is None or begun.late or begun.error is not None or begun.task.cancelled():
            begun = self._destruction = BoundedCall(self._destroy, self._deadlines)
        return begun

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

    async def _destroy(self) -> None:
        await self._sandbox.destroy()
        self._on_end(self._sandbox)

    def _failure(self, destruction: BoundedCall[None]) -> SubstrateFailed | None:
        if destruction.late:
            return SubstrateFailed(f"sandbox {self._sandbox.id} was not destroyed in {self._deadlines.within_s:g} s")
        error = asyncio.CancelledError() if destruction.task.cancelled() else destruction.error
        if error is None or isinstance(error, SubstrateFailed):
            return error
        failure = SubstrateFailed(f"sandbox {self._sandbox.id} was not destroyed: {error!r}")
        failure.__cause__ = error
        return failure
