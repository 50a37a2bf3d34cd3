"""The decorator that every substrate is used through. Its promises:

* Lifecycle calls are serialised: one destruction per sandbox however many callers ask for it, and no creation while
  the substrate opens or closes. (Creations run at the same time: a pool would be pointless otherwise.)
* Any infrastructure failure, from any call, destroys the sandbox; from then on every call answers SandboxGone.
* Destruction ends in bounded time, goes on if its caller is cancelled, and is tried again after a failure.
* A creation that is cancelled leaves nothing, also when the substrate ignores the cancellation and finishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import DeadlineExceeded, InvalidRequest, SubstrateFailed
from dutyfree.model import SandboxSpec
from dutyfree.substrates.forwarding import ForwardingSubstrate
from dutyfree.substrates.guarded.bounded import BoundedCall, Deadlines
from dutyfree.substrates.guarded.sandbox import GuardedSandbox

CREATE_TIMEOUT_S = 600.0
DESTROY_TIMEOUT_S = 30.0


class GuardedSubstrate(ForwardingSubstrate):
    """`inner`, guarded. Names, isolation and capabilities are those of `inner`."""

    def __init__(
        self,
        inner: Substrate,
        *,
        create_timeout_s: float = CREATE_TIMEOUT_S,
        destroy_timeout_s: float = DESTROY_TIMEOUT_S,
    ) -> None:
        super().__init__(inner)
        self._creation_deadlines = Deadlines(create_timeout_s)
        self._destroy_timeout_s = destroy_timeout_s
        self._destruction_deadlines = Deadlines(destroy_timeout_s)
        self._lifecycle = asyncio.Lock()
        self._is_open = False
        self._creations: set[BoundedCall[Sandbox]] = set()
        self._alive: dict[Sandbox, GuardedSandbox] = {}
        """The guarded sandboxes by the ones inside."""
        self._cleanups: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:  # type: ignore[override]  # the contract's attribute, read only here
        return self._inner.name

    async def open(self) -> None:
        async with self._lifecycle:
            await self._inner.open()
            self._is_open = True

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        if self._lifecycle.locked():
            async with self._lifecycle:
                pass  # it is being opened or closed
        if not self._is_open:
            raise InvalidRequest(f"substrate {self.name!r} is not open")
        creation = BoundedCall(partial(self._inner.create, spec, on_span), self._creation_deadlines)
        self._creations.add(creation)
        try:
            await creation.settled()
        except asyncio.CancelledError:
            await asyncio.wait({self._abandon(creation)})
            raise
        if creation not in self._creations:
            raise self._closed_meanwhile()
        if creation.late:
            await asyncio.wait({self._abandon(creation)})
            within_s = self._creation_deadlines.within_s
            raise DeadlineExceeded(f"substrate {self.name!r} created nothing within {within_s:g} s")
        self._creations.discard(creation)
        if isinstance(creation.error, asyncio.CancelledError):
            raise self._closed_meanwhile()
        if creation.error is not None:
            raise creation.error
        return self._adopt(creation.results[0])

    def _closed_meanwhile(self) -> SubstrateFailed:
        return SubstrateFailed(f"substrate {self.name!r} was closed during a creation")

    def _adopt(self, inner: Sandbox) -> GuardedSandbox:
        sandbox = GuardedSandbox(inner, self._destruction_deadlines, self._forget, self._adopt)
        self._alive[inner] = sandbox
        return sandbox

    def _forget(self, inner: Sandbox) -> None:
        self._alive.pop(inner, None)

    async def close(self) -> None:
        async with self._lifecycle:
            self._is_open = False
            for creation in tuple(self._creations):
                self._abandon(creation)
            for sandbox in tuple(self._alive.values()):
                self._spawn(sandbox.destroy())
            outcomes = await asyncio.gather(*self._cleanups, return_exceptions=True)
            try:
                await asyncio.wait_for(self._inner.close(), self._destroy_timeout_s)
            except TimeoutError:
                raise SubstrateFailed(
                    f"substrate {self.name!r} did not close within {self._destroy_timeout_s:g} s"
                ) from None
            finally:
                self._creation_deadlines.close()
                self._destruction_deadlines.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _abandon(self, creation: BoundedCall[Sandbox]) -> asyncio.Task[None]:
        """Cancel a creation, and destroy its sandbox if it makes one anyway; the task ends when nothing is left."""
        self._creations.discard(creation)
        creation.cancel()
        return self._spawn(self._destroy_result(creation))

    async def _destroy_result(self, creation: BoundedCall[Sandbox]) -> None:
        await asyncio.wait({creation.task}, timeout=self._destroy_timeout_s)
        for made in creation.results:
            await self._adopt(made).destroy()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)
        return task
