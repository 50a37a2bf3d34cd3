"""The exec path: one call of the engine's control plane for each action.

The engine runs a guest for the action, and the guest runs the action: exit codes and signals, timeouts, whole process
trees and the command's own time are then the same as on the guest path, at the cost of one more process; the call
itself costs tens of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self, TypeVar

from dutyfree.checked import FilePath, path_text
from dutyfree.contract import ActionStream, Files, Session, Terminal, Watch
from dutyfree.errors import (
    DutyfreeError,
    InfraFailed,
    InvalidRequest,
    SandboxGone,
    SandboxReset,
    SessionEnded,
    SubstrateFailed,
)
from dutyfree.failure import on_failure
from dutyfree.guest.files import GuestFiles
from dutyfree.guest.runner import Runner, paused
from dutyfree.guest.session import GuestSession
from dutyfree.guest.terminal import GuestTerminal
from dutyfree.model import Action, Command, FileEvent, Observation, User
from dutyfree.model.user import check_user
from dutyfree.substrates.engine.body import Body
from dutyfree.substrates.engine.exec_stream import ExecActionStream
from dutyfree.substrates.forwarding import ForwardingFiles
from dutyfree.wire.channel import Channel

Result = TypeVar("Result")


class ExecPath:
    """Makes a connection for each call, and knows those that are open."""

    def __init__(self, runner: Runner, body: Callable[[], Body]) -> None:
        self._sandbox = runner
        self._body = body
        self._channels: set[Channel] = set()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Those of the guests that run now."""
        return tuple(self._channels)

    async def connect(self, *, one_action: bool = True) -> Runner:
        """Start a guest; the caller ends it with `disconnect`. Raises as `Body.connect` does.

        `one_action`: the call is part of the action for which it is made.
        """
        began_ns = time.monotonic_ns()
        if self._sandbox.channel.refuses:
            raise paused(self._sandbox.sandbox_id)
        channel = await self._connection()
        self._channels.add(channel)
        return self._sandbox.with_channel(channel, began_ns if one_action else None)

    async def _connection(self) -> Channel:
        """Raises SandboxReset, too, if a reset has replaced the body meanwhile."""
        body = self._body()
        try:
            channel = await body.connect()
        except (SandboxGone, InfraFailed):
            self._check_not_replaced(body)
            raise
        try:
            self._check_not_replaced(body)
        except SandboxReset:
            channel.close()
            raise
        return channel

    def _check_not_replaced(self, body: Body) -> None:
        with suppress(SandboxGone):
            if self._body() is not body:
                raise SandboxReset("the sandbox was reset while this was under way")

    def disconnect(self, runner: Runner) -> None:
        """End the guest and all that it still runs. Idempotent."""
        runner.channel.close()
        self._channels.discard(runner.channel)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Runner]:
        """A guest for the length of the block."""
        runner = await self.connect()
        try:
            yield runner
        finally:
            self.disconnect(runner)

    async def run(self, action: Action) -> Observation:
        """Run one action to its end."""
        async with self.connected() as runner:
            return await runner.run(action)

    def stream(self, action: Action) -> ActionStream:
        """Start an action; its output is read while it runs."""
        return ExecActionStream(self, action)

    async def session(self, cwd: str | None, env: Mapping[str, str] | None, user: User | None) -> Session:
        """A persistent shell: one call for all of its lines."""
        runner = await self.connect(one_action=False)
        with on_failure(self.disconnect, runner):
            session = await _ExecSession.open(runner, cwd, env, user)
        session.on_close = lambda: self.disconnect(runner)
        return session

    async def terminal(
        self,
        command: Command,
        *,
        rows: int,
        cols: int,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: User | None,
    ) -> Terminal:
        """A command on a pseudo-terminal."""
        runner = await self.connect()
        with on_failure(self.disconnect, runner):
            terminal = await _ExecTerminal.open(runner, command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)
        terminal.on_close = lambda: self.disconnect(runner)
        return terminal

    def fail(self, error: DutyfreeError) -> None:
        """End all connections; every call that waits on one raises the error."""
        for channel in tuple(self._channels):
            channel.fail(error)
        self._channels.clear()

    def close(self) -> None:
        """The sandbox is being destroyed."""
        self.fail(SubstrateFailed("the sandbox was destroyed while this was under way"))


class ExecFiles(ForwardingFiles):
    """One call of the control plane, and one guest, for each operation."""

    def __init__(self, path: ExecPath, user: User | None = None) -> None:
        self._path = path
        self._user = user

    def as_user(self, user: User) -> Files:
        check_user(user)
        return ExecFiles(self._path, user)

    def watch(self, path: FilePath, *, recursive: bool = False) -> Watch:
        return _ExecWatch(self._path, path_text("path", path), recursive=recursive)

    async def _call(self, operation: Callable[[Files], Awaitable[Result]]) -> Result:
        async with self._path.connected() as runner:
            return await operation(GuestFiles(runner, user=self._user))


class _ExecSession(GuestSession):
    """Closing it ends its guest, but not the sandbox."""

    on_close: Callable[[], None] = staticmethod(lambda: None)

    async def close(self) -> None:
        self._ended = True
        with suppress(DutyfreeError):
            await super().close()
        self.on_close()

    def _check(self) -> None:
        if self._ended:
            raise SessionEnded("the session was closed", hint="open another session")
        try:
            self._runner.channel.check()
        except SandboxReset as reset:
            raise SessionEnded("the session ended with a reset", hint="open another session") from reset
        except DutyfreeError:
            pass  # all other ends have the same message for all sessions
        super()._check()


class _ExecWatch(Watch):
    """A guest of its own for the length of the block."""

    def __init__(self, exec_path: ExecPath, path: str, *, recursive: bool) -> None:
        self._exec_path = exec_path
        self._path = path
        self._recursive = recursive
        self._runner: Runner | None = None
        self._inner: Watch | None = None

    async def __aenter__(self) -> Self:
        self._runner = await self._exec_path.connect()
        with on_failure(self._exec_path.disconnect, self._runner):
            self._inner = GuestFiles(self._runner).watch(self._path, recursive=self._recursive)
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None and self._inner is not None:
            try:
                await self._inner.__aexit__(kind, error, trace)
            finally:
                self._exec_path.disconnect(self._runner)

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        if self._inner is None:
            raise InvalidRequest("a watch must be entered first", hint="use `async with`")
        return aiter(self._inner)


class _ExecTerminal(GuestTerminal):
    on_close: Callable[[], None] = staticmethod(lambda: None)

    async def close(self) -> None:
        with suppress(DutyfreeError):
            await super().close()
        self.on_close()
