"""A sandbox behind a guard: every call passes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dutyfree.contract import (
    DEFAULT_DIAL_TIMEOUT_S,
    ActionStream,
    Connection,
    Datagrams,
    Listener,
    Sandbox,
    Session,
    Snapshot,
    Terminal,
)
from dutyfree.errors import InfraFailed, SandboxGone, Unsupported
from dutyfree.model import Action, Command, ListeningPort, Metrics, Observation, SavedCache, Usage, User
from dutyfree.substrates.forwarding import ForwardingSandbox
from dutyfree.substrates.guarded.bounded import Deadlines
from dutyfree.substrates.guarded.connections import GuardedConnection, GuardedDatagrams, GuardedListener
from dutyfree.substrates.guarded.files import GuardedFiles
from dutyfree.substrates.guarded.guard import Guard
from dutyfree.substrates.guarded.parts import GuardedSession, GuardedStream, GuardedTerminal


class GuardedSandbox(ForwardingSandbox):
    """`inner`, guarded. `deadlines` are those of destructions; `on_end` is called with `inner` after its destruction;
    `adopt` guards its forks."""

    def __init__(
        self,
        inner: Sandbox,
        deadlines: Deadlines,
        on_end: Callable[[Sandbox], object],
        adopt: Callable[[Sandbox], Sandbox],
    ) -> None:
        super().__init__(inner)
        self._adopt = adopt
        self._guard = Guard(inner, deadlines, on_end)
        self.files = GuardedFiles(inner.files, self._guard)

    @property
    def alive(self) -> bool:
        return not self._guard.gone and self._inner.alive

    async def run(self, action: Action) -> Observation:
        async with self._guard:
            return await self._inner.run(action)

    def stream(self, action: Action) -> ActionStream:
        self._guard.check()
        try:
            return GuardedStream(self._inner.stream(action), self._guard)
        except (InfraFailed, SandboxGone):
            self._guard.start_destruction()
            raise

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        async with self._guard:
            return GuardedSession(await self._inner.session(cwd=cwd, env=env, user=user), self._guard)

    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> Terminal:
        async with self._guard:
            inner = await self._inner.terminal(command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)
            return GuardedTerminal(inner, self._guard)

    async def dial(
        self, port: int, *, address: str = "127.0.0.1", timeout_s: float = DEFAULT_DIAL_TIMEOUT_S
    ) -> Connection:
        async with self._guard:
            inner = await self._inner.dial(port, address=address, timeout_s=timeout_s)
            return GuardedConnection(inner, self._guard)

    async def listening_ports(self) -> list[ListeningPort]:
        async with self._guard:
            return await self._inner.listening_ports()

    async def listen(self, port: int, *, address: str = "127.0.0.1") -> Listener:
        async with self._guard:
            return GuardedListener(await self._inner.listen(port, address=address), self._guard)

    async def datagrams(self, port: int, *, address: str = "127.0.0.1") -> Datagrams:
        async with self._guard:
            return GuardedDatagrams(await self._inner.datagrams(port, address=address), self._guard)

    async def pause(self) -> None:
        async with self._guard:
            await self._inner.pause()

    async def resume(self) -> None:
        async with self._guard:
            await self._inner.resume()

    async def reset(self) -> None:
        async with self._guard:
            try:
                await self._inner.reset()
            except Unsupported:
                raise
            except BaseException:  # also a reset that was cancelled: nothing may run in a half-reset sandbox
                self._guard.start_destruction()
                raise

    async def snapshot(self) -> Snapshot:
        async with self._guard:
            return await self._inner.snapshot()

    async def save_cache(self, name: str) -> SavedCache:
        async with self._guard:
            return await self._inner.save_cache(name)

    async def fork(self, count: int) -> list[Sandbox]:
        async with self._guard:
            return [self._adopt(each) for each in await self._inner.fork(count)]

    def usage(self) -> Usage | None:
        self._guard.check()
        return self._inner.usage()

    async def metrics(self) -> Metrics:
        async with self._guard:
            return await self._inner.metrics()

    async def destroy(self) -> None:
        await self._guard.destroy()
