"""A sandbox that is reached through its guest agent. What it consists of is up to its substrate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from dutyfree.contract import ActionStream, Sandbox, Session, SpanListener, Terminal
from dutyfree.guest.files import GuestFiles
from dutyfree.guest.limits import LimitWatch
from dutyfree.guest.runner import Runner
from dutyfree.guest.session import GuestSession
from dutyfree.guest.stream import GuestActionStream
from dutyfree.guest.terminal import GuestTerminal
from dutyfree.model import Action, Command, Observation, Phase, Span, Unenforced
from dutyfree.wire.channel import Channel


class GuestSandbox(Sandbox):
    """`destroy` gives back all that the substrate holds for this sandbox.

    It is called after the channel was closed, never twice at a time, and again only if it raised or was cancelled.
    """

    def __init__(
        self,
        sandbox_id: str,
        channel: Channel,
        *,
        destroy: Callable[[], Awaitable[None]],
        env: Mapping[str, str],
        cwd: str = "/",
        unenforced: tuple[Unenforced, ...] = (),
        limits: LimitWatch | None = None,
        on_span: SpanListener | None = None,
        refusal_hint: str | None = None,
    ) -> None:
        self.id = sandbox_id
        self._runner = Runner(sandbox_id, channel, env=env, cwd=cwd, limits=limits, on_span=on_span)
        self.files = GuestFiles(self._runner, refusal_hint)
        self._unenforced = unenforced
        self._give_back = destroy
        self._destroying = asyncio.Lock()
        self._destroyed = False

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return self._unenforced

    @property
    def alive(self) -> bool:
        return self._runner.channel.alive

    async def run(self, action: Action) -> Observation:
        return await self._runner.run(action)

    def stream(self, action: Action) -> ActionStream:
        return GuestActionStream(self._runner, action)

    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Session:
        return await GuestSession.open(self._runner, cwd, env)

    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        return await GuestTerminal.open(self._runner, command, rows=rows, cols=cols, cwd=cwd, env=env)

    async def destroy(self) -> None:
        start_ns = time.monotonic_ns()
        self._runner.channel.close()
        async with self._destroying:
            if self._destroyed:
                return
            await self._give_back()
            self._destroyed = True
            if self._runner.on_span is not None:
                self._runner.on_span(Span(Phase.DESTROY, start_ns, time.monotonic_ns(), self.id))
