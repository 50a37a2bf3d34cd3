"""What a guarded sandbox and everything opened in it share: one verdict on whether it still lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, InfraFailed, SandboxGone, SubstrateFailed


class Guard:
    """Entered around each call: refuses it when the sandbox is gone, ends the sandbox when the machinery fails.

    `on_end` is told once, when the sandbox has been destroyed.
    """

    def __init__(self, sandbox: Sandbox, destroy_timeout_s: float, on_end: Callable[[], None]) -> None:
        self._sandbox = sandbox
        self._destroy_timeout_s = destroy_timeout_s
        self._on_end = on_end
        self._destruction: asyncio.Task[None] | None = None

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""
        return self._destruction is not None

    def check(self) -> None:
        """Raise SandboxGone if calls are refused."""
        if self.gone:
            raise SandboxGone(f"sandbox {self._sandbox.id} is gone")

    async def destroy(self) -> None:
        """End the sandbox, once, whoever asks; after a failure the next call tries again. Raises SubstrateFailed."""
        # Shielded: a caller that is cancelled must not leave half a sandbox to the others.
        await asyncio.shield(self.start_destruction())

    def start_destruction(self) -> asyncio.Task[None]:
        """Refuse calls from now on, and destroy the sandbox in the background."""
        if self._destruction is None or _failed(self._destruction):
            self._destruction = asyncio.get_running_loop().create_task(self._destroy())
        return self._destruction

    async def __aenter__(self) -> None:
        self.check()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InfraFailed | SandboxGone):
            await self.end_after(error)

    async def end_after(self, error: DutyfreeError) -> None:
        """Destroy the sandbox because of `error`, which stays the one that the caller sees."""
        try:
            await self.destroy()
        except SubstrateFailed as failure:
            error.add_note(f"and then its sandbox could not be destroyed: {failure}")

    async def _destroy(self) -> None:
        work = asyncio.get_running_loop().create_task(self._sandbox.destroy())
        # Not wait_for: that would wait on for a destruction that also ignores its cancellation.
        done, _ = await asyncio.wait({work}, timeout=self._destroy_timeout_s)
        if not done:
            work.cancel()
            raise SubstrateFailed(f"sandbox {self._sandbox.id} was not destroyed in {self._destroy_timeout_s:g} s")
        error = None if work.cancelled() else work.exception()
        if isinstance(error, SubstrateFailed):
            raise error
        if error is not None or work.cancelled():
            raise SubstrateFailed(f"sandbox {self._sandbox.id} was not destroyed: {error!r}") from error
        self._on_end()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
