"""A sandbox whose world is reached through its guest; what it is made of is the substrate's business."""

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

    It is called after the channel was closed, never twice at a time, and again only if it raised.
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
        self._destruction: asyncio.Task[None] | None = None

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
        if self._destruction is None or _has_failed(self._destruction):
            self._destruction = asyncio.create_task(self._destroy())
        # Whoever waits may be cancelled; what was begun is carried through.
        await asyncio.shield(self._destruction)

    async def _destroy(self) -> None:
        start_ns = time.monotonic_ns()
        self._runner.channel.close()
        await self._give_back()
        if self._runner.on_span is not None:
            self._runner.on_span(Span(Phase.DESTROY, start_ns, time.monotonic_ns(), self.id))


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
