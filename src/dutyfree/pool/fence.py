"""What stands between a tenant and its sandbox: behind it, calls go on only as long as the lease does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from dutyfree.contract import ActionStream, Sandbox, Session, Snapshot, Terminal
from dutyfree.errors import DutyfreeError, LeaseLost, Unsupported
from dutyfree.model import Action, Capability, Command, Observation, Unenforced
from dutyfree.pool.binding import Binding, bind
from dutyfree.pool.leases import Lease
from dutyfree.substrates.guarded.files import GuardedFiles
from dutyfree.substrates.guarded.parts import GuardedSession, GuardedStream, GuardedTerminal


class Fence:
    """Entered around each call of a tenant; after `end`, every call raises LeaseLost, also those under way.

    Calls under way are cancelled: none may take its next step in a sandbox that is somebody else's by then. Whatever
    such a call gives none the less, an observation or an error, is withheld. Once `drained` says so, nothing of the
    tenant's is on its way into the sandbox; what runs inside ends with the reset or the destruction that follows.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._how: str | None = None
        self._calls: dict[asyncio.Task[Any], int] = {}
        """Those under way, with how often each was being cancelled when it came."""
        self._empty: asyncio.Future[None] | None = None
        self._forks: dict[Sandbox, None] = {}

    @property
    def gone(self) -> bool:
        """Whether calls are refused."""
        return self._how is not None

    @property
    def forks(self) -> tuple[Sandbox, ...]:
        """What the tenant has forked its sandbox into: to be destroyed when the lease has ended."""
        return tuple(fork for fork in self._forks if fork.alive)

    def end(self, how: str = "has ended") -> None:
        """Refuse calls from now on, and cancel those under way. Idempotent."""
        if self._how is None:
            self._how = how
            if self._calls:
                self._empty = asyncio.get_running_loop().create_future()
            for task in self._calls:
                task.cancel()

    async def drained(self, within_s: float) -> bool:
        """Wait, after `end`, until no call is under way; False if that takes too long: then reset nothing, destroy."""
        if self._empty is not None:
            await asyncio.wait({self._empty}, timeout=within_s)
        return not self._calls

    def check(self) -> None:
        """Raise LeaseLost if calls are refused."""
        if self._how is not None:
            raise LeaseLost(f"lease {self._lease.id} {self._how}")

    def adopt(self, forks: Iterable[Sandbox]) -> None:
        """Remember what has to be destroyed with the lease."""
        self._forks = {fork: None for fork in (*self._forks, *forks) if fork.alive}

    async def end_after(self, error: DutyfreeError) -> None:
        """A failure ends no lease; the guard below has ended the sandbox."""

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
            return  # the tenant has cancelled it, too
        raise LeaseLost(f"lease {self._lease.id} {self._how} while this was under way") from error


class LeasedSandbox(Sandbox):
    """`inner` as its tenant sees it: behind `fence`, and with what the lease has bound.

    The binding's files are in `inner` already (see `bind`). After the tenant's own reset, `restore` adds the stages
    that `inner` was given since it was made, and the files are bound again. Forks are behind the same fence, and have
    the same binding. Where snapshots and forks are made from all of a machine's memory, `snapshots_hold_memory`, and
    secrets are bound, there are none: the secrets would be in them.
    """

    def __init__(
        self,
        inner: Sandbox,
        fence: Fence,
        lease: Lease,
        binding: Binding,
        capabilities: frozenset[Capability],
        restore: Callable[[Sandbox], Awaitable[None]] | None = None,
        *,
        snapshots_hold_memory: bool = False,
    ) -> None:
        self.id = inner.id
        self.files = GuardedFiles(inner.files, fence)
        self._inner = inner
        self._fence = fence
        self._lease = lease
        self._binding = binding
        self._capabilities = capabilities
        self._restore = restore
        self._seals = snapshots_hold_memory and binding.is_secret
        self._env = binding.environment(lease)

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return self._inner.unenforced

    @property
    def alive(self) -> bool:
        return not self._fence.gone and self._inner.alive

    async def run(self, action: Action) -> Observation:
        async with self._fence:
            return await self._inner.run(self._bound(action))

    def stream(self, action: Action) -> ActionStream:
        self._fence.check()
        return GuardedStream(self._inner.stream(self._bound(action)), self._fence)

    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Session:
        async with self._fence:
            return GuardedSession(await self._inner.session(cwd=cwd, env=self._env.under(env or {})), self._fence)

    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        async with self._fence:
            bound = self._env.under(env or {})
            inner = await self._inner.terminal(command, rows=rows, cols=cols, cwd=cwd, env=bound)
            return GuardedTerminal(inner, self._fence)

    async def reset(self) -> None:
        async with self._fence:
            await self._inner.reset()
            try:
                if self._restore is not None:
                    await self._restore(self._inner)
                await bind(self._inner, self._binding, self._capabilities)
            except BaseException:  # half of what was leased is nobody's sandbox
                await self._inner.destroy()
                raise

    async def snapshot(self) -> Snapshot:
        async with self._fence:
            self._check_sealed()
            return await self._inner.snapshot()

    async def fork(self, count: int) -> list[Sandbox]:
        async with self._fence:
            self._check_sealed()
            forks = await self._inner.fork(count)
            binding = self._binding.of_forks()
            try:
                if binding.secret_files:
                    await asyncio.gather(*(bind(fork, binding, self._capabilities) for fork in forks))
            except BaseException:
                await asyncio.gather(*(fork.destroy() for fork in forks), return_exceptions=True)
                raise
            self._fence.adopt(forks)
            return [LeasedSandbox(fork, self._fence, self._lease, binding, self._capabilities) for fork in forks]

    async def destroy(self) -> None:
        """End the sandbox before its lease does; does nothing after the lease, when it may be somebody else's."""
        if not self._fence.gone:
            await self._inner.destroy()

    def _check_sealed(self) -> None:
        if self._seals:
            hint = "take it before the lease, or bind nothing that is secret"
            raise Unsupported("a snapshot here holds the sandbox's memory, and with it the lease's secrets", hint=hint)

    def _bound(self, action: Action) -> Action:
        return replace(action, env=self._env.under(action.env))
