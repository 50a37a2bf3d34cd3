"""A sandbox that is reached through its guest agent. What it consists of is up to its substrate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from dutyfree.contract import (
    DEFAULT_DIAL_TIMEOUT_S,
    ActionStream,
    Connection,
    Datagrams,
    Listener,
    Sandbox,
    Session,
    SpanListener,
    Terminal,
)
from dutyfree.errors import Unsupported
from dutyfree.guest.files import GuestFiles
from dutyfree.guest.limits import LimitWatch
from dutyfree.guest.runner import Runner
from dutyfree.guest.stream import GuestActionStream
from dutyfree.model import Action, Command, ListeningPort, Observation, Phase, Span, Unenforced, User
from dutyfree.wire.action_channel import ActionChannel

if TYPE_CHECKING:
    from dutyfree.guest.ports import Ports


class GuestSandbox(Sandbox):
    """`destroy` gives back all that the substrate holds for this sandbox.

    It is called after the channel was closed, never twice at a time, and again only if it raised or was cancelled.
    """

    def __init__(
        self,
        sandbox_id: str,
        channel: ActionChannel,
        *,
        destroy: Callable[[], Awaitable[None]],
        env: Mapping[str, str],
        cwd: str = "/",
        unenforced: tuple[Unenforced, ...] = (),
        limits: LimitWatch | None = None,
        on_span: SpanListener | None = None,
        refusal_hint: str | None = None,
        one_user: str | None = None,
        ports: bool = False,
    ) -> None:
        """`one_user`: why actions cannot run as other users, where they cannot. `ports`: whether the sandbox has a
        loopback of its own, so that its ports are not the host's.
        """
        self.id = sandbox_id
        self.refusal_hint = refusal_hint
        self._runner = Runner(sandbox_id, channel, env=env, cwd=cwd, limits=limits, on_span=on_span, one_user=one_user)
        self.files = GuestFiles(self._runner, refusal_hint)
        self._unenforced = unenforced
        self._give_back: Callable[[], Awaitable[None]] | None = destroy
        """None once it was called with success: it may refer to this object, and a reference cycle would stay."""
        self._destroying = asyncio.Lock()
        self._has_ports = ports
        self._ports: Ports | None = None

    @property
    def runner(self) -> Runner | None:
        """What sends actions to its guest; None where each action has a guest of its own."""
        return self._runner

    @property
    def has_ports(self) -> bool:
        """Whether it has a loopback of its own."""
        return self._has_ports

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

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        from dutyfree.guest.session import GuestSession  # most sandboxes have no session, terminal or port in use

        return await GuestSession.open(self._runner, cwd, env, user)

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
        from dutyfree.guest.terminal import GuestTerminal

        return await GuestTerminal.open(self._runner, command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)

    async def dial(
        self, port: int, *, address: str = "127.0.0.1", timeout_s: float = DEFAULT_DIAL_TIMEOUT_S
    ) -> Connection:
        return await self._own_ports().dial(address, port, timeout_s)

    async def listening_ports(self) -> list[ListeningPort]:
        return await self._own_ports().listening()

    async def listen(self, port: int, *, address: str = "127.0.0.1") -> Listener:
        return await self._own_ports().listen(address, port)

    async def datagrams(self, port: int, *, address: str = "127.0.0.1") -> Datagrams:
        return await self._own_ports().datagrams(address, port)

    def _own_ports(self) -> Ports:
        if not self._has_ports:
            raise Unsupported(
                "this sandbox has no ports of its own: its network is the host's", hint="use network none"
            )
        if self._ports is None:
            from dutyfree.guest.ports import Ports

            self._ports = Ports(self._runner)
        return self._ports

    async def destroy(self) -> None:
        start_ns = time.monotonic_ns()
        self._runner.channel.close()
        async with self._destroying:
            if self._give_back is None:
                return
            await self._give_back()
            self._give_back = None
            if self._runner.on_span is not None:
                self._runner.on_span(Span(Phase.DESTROY, start_ns, time.monotonic_ns(), self.id))
