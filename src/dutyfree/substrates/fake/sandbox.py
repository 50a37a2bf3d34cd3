"""One sandbox in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

from dutyfree.contract import ActionStream, Sandbox, Session, SpanListener, Terminal
from dutyfree.errors import DutyfreeError, InvalidRequest, LinkFailed, SandboxGone, SubstrateFailed, Unsupported
from dutyfree.model import Action, Capability, Chunk, Command, Network, Observation, Phase, SandboxSpec, Unenforced
from dutyfree.substrates.fake.execution import Execution, empty_success
from dutyfree.substrates.fake.files import FakeFiles
from dutyfree.substrates.fake.pipes import BytesReader, Output, Pipe
from dutyfree.substrates.fake.script import FaultKind, Performer, Step
from dutyfree.substrates.fake.shell import Tasks
from dutyfree.substrates.fake.tree import Tree
from dutyfree.trace import timed

_STALLED_CHUNKS = 16
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/root"}


class FakeSandbox(Sandbox):
    """Files and commands in memory, nothing else; `die` lets a test kill it from outside."""

    def __init__(
        self,
        name: str,
        spec: SandboxSpec,
        performer: Performer,
        on_span: SpanListener | None,
        on_end: Callable[[FakeSandbox], None],
    ) -> None:
        self.id = name
        self.tree = Tree()
        self.files = FakeFiles(self.tree, self.check_alive)
        self.environment = _ENVIRONMENT | dict(spec.env)
        self.performer = performer
        self.ended: asyncio.Future[DutyfreeError] = asyncio.get_running_loop().create_future()
        self.left_behind: set[Tasks] = set()
        self.pids = itertools.count(2)
        self._spec = spec
        self._on_span = on_span
        self._on_end = on_end

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        resources = self._spec.resources
        asked = {
            Capability.LIMIT_MEMORY: resources.memory_bytes is not None,
            Capability.LIMIT_PIDS: resources.pids is not None,
            Capability.LIMIT_CPU: resources.cpus is not None,
            Capability.LIMIT_DISK: resources.disk_bytes is not None,
            Capability.DENY_NETWORK: self._spec.network is Network.NONE,
        }
        return tuple(Unenforced(what, "a fake has nothing to limit") for what, is_asked in asked.items() if is_asked)

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def check_alive(self) -> None:
        """Raise SandboxGone unless an action can still be tried."""
        if not self.alive:
            raise SandboxGone(f"sandbox {self.id} is gone")

    async def run(self, action: Action) -> Observation:
        self.check_alive()
        fault = self.performer.fault(Step.RUN)
        if fault is FaultKind.LIE:
            return empty_success(self.id)
        await self._suffer(fault)
        output = Output(action.output_limit_bytes)
        execution = Execution(self, action, BytesReader(action.stdin or b""), output, self._on_span)
        return await execution.observe()

    def stream(self, action: Action) -> ActionStream:
        self.check_alive()
        return FakeStream(self, action, self._on_span)

    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Session:
        self.check_alive()
        raise Unsupported("a fake sandbox has no sessions")

    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        self.check_alive()
        raise Unsupported("a fake sandbox has no terminals")

    async def destroy(self) -> None:
        if not self.alive:
            return
        fault = self.performer.fault(Step.DESTROY)
        if fault is FaultKind.LIE:
            return
        with timed(self._on_span, Phase.DESTROY, sandbox=self.id):
            if fault is FaultKind.DIE:
                self.die()
            else:
                await self._suffer(fault)
            await self.performer.delay(Phase.DESTROY)
            self._end(LinkFailed(f"sandbox {self.id} was destroyed"))

    def die(self) -> None:
        """End as a sandbox does whose machine was switched off."""
        self._end(LinkFailed(f"sandbox {self.id} died"))

    async def _suffer(self, fault: FaultKind | None) -> None:
        if fault is FaultKind.FAIL:
            raise SubstrateFailed(f"sandbox {self.id} failed, as scripted")
        if fault is FaultKind.DIE:
            self.die()
        if fault is FaultKind.HANG:
            await asyncio.wait({self.ended})
        if not self.alive:
            self.raise_end()

    def raise_end(self) -> NoReturn:
        """Raise, for a call that was under way, what ended the sandbox."""
        raise LinkFailed(self.ended.result().message)

    async def start_stream(self) -> FaultKind | None:
        """What happens when a stream starts; a lie is left to the stream."""
        self.check_alive()
        fault = self.performer.fault(Step.STREAM)
        if fault is not FaultKind.LIE:
            await self._suffer(fault)
        return fault

    def _end(self, error: DutyfreeError) -> None:
        if self.alive:
            self.ended.set_result(error)
            for tasks in self.left_behind:
                tasks.kill()
            self._on_end(self)


class FakeStream(ActionStream):
    """An action under way in a fake sandbox."""

    def __init__(self, sandbox: FakeSandbox, action: Action, on_span: SpanListener | None) -> None:
        self._sandbox = sandbox
        self._chunks: asyncio.Queue[Chunk] = asyncio.Queue(_STALLED_CHUNKS)
        self._output = Output(action.output_limit_bytes, self._chunks)
        self._input = Pipe()
        self._first_input = action.stdin
        self._input_ended = False
        self._execution = Execution(sandbox, action, self._input, self._output, on_span)
        self._result: asyncio.Future[Observation] | None = None

    async def __aenter__(self) -> Self:
        if await self._sandbox.start_stream() is FaultKind.LIE:
            self._result = asyncio.get_running_loop().create_future()
            self._result.set_result(empty_success(self._sandbox.id))
            return self
        self._execution.check()
        self._result = asyncio.get_running_loop().create_task(self._execution.observe())
        if self._first_input is not None:
            await self.write(self._first_input)
            await self.end_input()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        result = self._started()
        if not result.done():
            result.cancel()
        self._output.drop()
        await asyncio.wait({result})
        if not result.cancelled():
            result.exception()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._read()

    async def write(self, data: bytes) -> None:
        if self._input_ended:
            raise InvalidRequest("the input of this action was ended")
        try:
            await self._input.write(data)
        except BrokenPipeError:
            self._sandbox.check_alive()

    async def end_input(self) -> None:
        self._input_ended = True
        await self._input.end_writing()

    async def signal(self, number: int) -> None:
        self._execution.signal(number)

    async def kill(self) -> None:
        self._execution.kill()

    async def wait(self) -> Observation:
        self._output.drop()
        return await asyncio.shield(self._started())

    async def _read(self) -> AsyncIterator[Chunk]:
        result = self._started()
        while True:
            if not self._chunks.empty():
                yield self._chunks.get_nowait()
            elif result.done():
                result.result()
                return
            else:
                more = asyncio.ensure_future(self._chunks.get())
                try:
                    ends: set[asyncio.Future[Any]] = {more, result}
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    chunk = more.result() if more.done() else None
                finally:
                    more.cancel()
                if chunk is not None:
                    yield chunk

    def _started(self) -> asyncio.Future[Observation]:
        if self._result is None:
            raise InvalidRequest("the stream is not open", hint="use it in an `async with` block")
        return self._result
