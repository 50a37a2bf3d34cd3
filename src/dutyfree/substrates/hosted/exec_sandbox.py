"""A sandbox on the exec path: every action and file operation is a call of the SDK, as its users make them."""

from __future__ import annotations

import asyncio
import itertools
import os
import posixpath
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, Self

from e2b import AsyncSandbox

from dutyfree.contract import ActionStream, Sandbox, Session, SpanListener, Terminal
from dutyfree.errors import InfraFailed, InvalidRequest, SandboxGone, SubstrateFailed, Unsupported
from dutyfree.model import Action, Chunk, Command, Observation, Phase, Span, Unenforced, User
from dutyfree.substrates.hosted.exec_action import SIGKILL, ExecAction
from dutyfree.substrates.hosted.exec_files import ExecFiles
from dutyfree.substrates.hosted.service import translated

if TYPE_CHECKING:
    from dutyfree.substrates.hosted.substrate import HostedSubstrate

_WAITING_CHUNKS: Final = 16
_HINT: Final = "the path `guest` has it"
_numbers = itertools.count(1)


class ExecSandbox(Sandbox):
    """The service's sandbox, with nothing of ours in it."""

    def __init__(
        self,
        substrate: HostedSubstrate,
        remote: AsyncSandbox,
        *,
        user: str,
        request_timeout_s: float,
        unenforced: tuple[Unenforced, ...],
        on_span: SpanListener | None,
    ) -> None:
        self.id = f"{substrate.name}-{os.getpid()}-{next(_numbers)}"
        self.remote = remote
        self.files = ExecFiles(self, user)
        self._substrate = substrate
        self._user, self._request_timeout_s = user, request_timeout_s
        self._cwd: str | None = None
        """Where commands start; not asked before it is needed."""
        self._unenforced = unenforced
        self._on_span = on_span
        self._alive = True
        self._destroyed = False
        """Whether `destroy` was called."""
        self._gone = False
        """Whether nothing is left of it."""
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return self._unenforced

    @property
    def alive(self) -> bool:
        return self._alive

    def check(self) -> None:
        """Raise SandboxGone once it was destroyed or has died."""
        if not self._alive:
            raise SandboxGone(f"sandbox {self.id} is gone")

    async def start(self, command: ExecAction, action: Action) -> None:
        """Start a command; the sandbox has died if the service no longer has it."""
        self.check()
        if action.user is not None:
            raise Unsupported("actions run as the substrate's user here", hint=_HINT)
        try:
            cwd = await self._directory(action.cwd)
            await command.start(cwd=cwd, user=self._user, request_timeout_s=self._request_timeout_s)
        except (SandboxGone, InfraFailed):
            self._alive = False
            raise

    async def _directory(self, cwd: str | None) -> str | None:
        if cwd is None or cwd.startswith("/"):
            return cwd
        if self._cwd is None:
            async with translated("tell its working directory"):
                self._cwd = (await self.remote.commands.run("pwd", user=self._user)).stdout.removesuffix("\n")
        return posixpath.join(self._cwd, cwd)

    async def wait(self, command: ExecAction) -> Observation:
        """The observation of a command, without output; its spans are reported."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            seen = await command.wait()
        except InfraFailed:
            self._alive = False
            raise
        except asyncio.CancelledError:
            if self._destroyed and task is not None and task.uncancel() == 0:
                raise SubstrateFailed("the sandbox was destroyed while this was under way") from None
            raise
        finally:
            if task is not None:
                self._tasks.discard(task)
        if self._on_span is not None:
            for span in seen.spans:
                self._on_span(span)
        return seen

    async def run(self, action: Action) -> Observation:
        output = {"stdout": bytearray(), "stderr": bytearray()}

        async def keep(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            output[stream] += data

        command = ExecAction(self.remote, self.id, action, keep, waits=False)
        await self.start(command, action)
        feeding = asyncio.create_task(_feed(command, action.stdin)) if action.stdin else None
        try:
            seen = await self.wait(command)
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        return replace(seen, stdout=bytes(output["stdout"]), stderr=bytes(output["stderr"]))

    def stream(self, action: Action) -> ActionStream:
        self.check()
        return ExecStream(self, action)

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        raise Unsupported("the SDK has no sessions", hint=_HINT)

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
        raise Unsupported("terminals on the exec path are not built", hint=_HINT)

    async def destroy(self) -> None:
        if self._gone:
            return
        start_ns = time.monotonic_ns()
        self._alive = False
        self._destroyed = True
        for task in tuple(self._tasks):
            task.cancel()
        await self._substrate.end(self.remote.sandbox_id)
        self._gone = True
        self._substrate.forget(self)
        if self._on_span is not None:
            self._on_span(Span(Phase.DESTROY, start_ns, time.monotonic_ns(), self.id))


class ExecStream(ActionStream):
    """Begins when it is created; a reader that stops makes the SDK stop reading."""

    def __init__(self, sandbox: ExecSandbox, action: Action) -> None:
        self._sandbox = sandbox
        self._action = action
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue(_WAITING_CHUNKS)
        self._command = ExecAction(sandbox.remote, sandbox.id, action, self._put, waits=action.stdin is None)
        self._has_input = action.stdin is None
        self._started = asyncio.Event()
        self._over = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> Observation:
        try:
            await self._sandbox.start(self._command, self._action)
            self._started.set()
            if self._action.stdin:
                await _feed(self._command, self._action.stdin)
            return await self._sandbox.wait(self._command)
        finally:
            self._started.set()
            self._over = True
            with suppress(asyncio.QueueFull):
                self._chunks.put_nowait(None)

    async def _put(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        await self._chunks.put(Chunk(stream, data))

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._over and self._chunks.empty():
            await self._task  # raises what ended it
            raise StopAsyncIteration
        chunk = await self._chunks.get()
        if chunk is None:
            await self._task
            raise StopAsyncIteration
        return chunk

    async def write(self, data: bytes) -> None:
        if not self._has_input:
            raise InvalidRequest("the input has ended")
        await self._started.wait()
        await self._command.give(data)

    async def end_input(self) -> None:
        if self._has_input:
            self._has_input = False
            await self._started.wait()
            await self._command.end_input()

    async def signal(self, number: int) -> None:
        if number != SIGKILL:
            raise Unsupported("the SDK sends no signal but SIGKILL", hint=_HINT)
        await self.kill()

    async def kill(self) -> None:
        await self._started.wait()
        if not self._over:
            await self._command.kill()

    async def wait(self) -> Observation:
        while not self._over:
            if await self._chunks.get() is None:
                break
        return await self._task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _feed(command: ExecAction, data: bytes) -> None:
    await command.give(data)
    await command.end_input()
