"""What a guarded sandbox and everything opened in it share: whether it is alive, and how it is destroyed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, InfraFailed, SandboxGone, SubstrateFailed
from dutyfree.substrates.shared_task import SharedTask


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
        self._destruction = SharedTask(self._destroy)

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""
        return self._destruction.started

    def check(self) -> None:
        """Raise SandboxGone if calls are refused."""
        if self.gone:
            raise SandboxGone(f"sandbox {self._sandbox.id} is gone")

    async def destroy(self) -> None:
        """Destroy the sandbox, or wait for the destruction under way. Raises SubstrateFailed."""
        await self._destruction.wait()

    def start_destruction(self) -> None:
        """Refuse calls from now on, and destroy the sandbox in the background."""
        self._destruction.start()

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
