"""A sandbox of another substrate whose calls are delayed and fail as a script says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace

from dutyfree.contract import ActionStream, Sandbox, Session, SpanListener, Terminal
from dutyfree.errors import DutyfreeError, LinkFailed, SandboxGone
from dutyfree.model import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_TIMEOUT_S,
    Action,
    Command,
    Observation,
    Phase,
    Span,
    User,
)
from dutyfree.substrates.fake.options import FailureKind, Injection, Script, Step
from dutyfree.substrates.forwarding import ForwardingSandbox
from dutyfree.substrates.guarded.parts import GuardedStream
from dutyfree.trace import now_ns


class FakeSandbox(ForwardingSandbox):
    """`inner`, with injected delays and failures; `living` holds it until it was destroyed."""

    def __init__(
        self, inner: Sandbox, script: Script, living: set[FakeSandbox], on_span: SpanListener | None = None
    ) -> None:
        super().__init__(inner)
        self._script = script
        self._living = living
        self._on_span = on_span
        self._ended = asyncio.Event()
        self._death: asyncio.TimerHandle | None = None
        self._end: asyncio.Future[None] | None = None
        living.add(self)

    async def run(self, action: Action) -> Observation:
        start_ns = now_ns()
        await self.inject(Step.RUN)
        seen = await self._inner.run(action)
        return replace(seen, timing=replace(seen.timing, start_ns=start_ns))

    def stream(self, action: Action) -> ActionStream:
        return GuardedStream(self._inner.stream(action), _StreamGate(self))

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        return _FakeSession(await self._inner.session(cwd=cwd, env=env, user=user), self)

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
        await self.inject(Step.RUN)
        return await self._inner.terminal(command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)

    async def reset(self) -> None:
        try:
            await self.inject(Step.RESET)
        except BaseException:
            await self.end()  # the contract: a sandbox whose reset failed is not used again
            raise
        await self._inner.reset()

    async def fork(self, count: int) -> list[Sandbox]:
        forks = await self._inner.fork(count)
        return [FakeSandbox(each, self._script, self._living, self._on_span) for each in forks]

    async def destroy(self) -> None:
        if self in self._living:
            await self.inject(Step.DESTROY)
        await self.end()

    async def end(self) -> None:
        """Destroy the sandbox without injections. Idempotent; raises SubstrateFailed."""
        if self._death is not None:
            self._death.cancel()
        await self._inner.destroy()
        self._living.discard(self)
        self._ended.set()

    def die(self, after_s: float = 0.0) -> None:
        """Kill the sandbox's first process, or, where it has none on this machine, destroy the sandbox."""
        if after_s > 0:
            self._death = asyncio.get_running_loop().call_later(after_s, self.die)
        elif self.pid is None:
            self._end = asyncio.ensure_future(self.end())
        elif self._inner.alive:  # otherwise another process may have the number by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def inject(self, step: Step, injection: Injection | None = None) -> None:
        """Delay a call and make it fail, as the script says. Raises what is injected, and SandboxGone."""
        if step in (Step.RUN, Step.RESET) and not self.alive:
            raise SandboxGone(f"sandbox {self.id} is gone")
        delay_s, failure = injection or self._script.draw(step)
        if delay_s > 0:
            start_ns = now_ns()
            await asyncio.sleep(delay_s)
            if self._on_span is not None:
                phase = Phase.DISPATCH if step is Step.RUN else Phase(step)
                self._on_span(Span(phase, start_ns, now_ns(), self.id, "injected"))
        if failure is None:
            return
        if failure.kind is FailureKind.HANG:
            await self._ended.wait()
            raise LinkFailed(f"sandbox {self.id} was destroyed")
        if failure.kind is FailureKind.DEATH:
            self.die(failure.after_s)
            return
        await asyncio.sleep(failure.after_s)
        if failure.kind is FailureKind.MISBEHAVIOUR:
            self.die()
        raise failure.error()


class _StreamGate:
    """Injects before the stream starts, and lets all later calls pass."""

    gone = False

    def __init__(self, sandbox: FakeSandbox) -> None:
        self._sandbox = sandbox
        self._is_started = False

    async def end_after(self, error: DutyfreeError) -> None:
        """Do nothing: the guard around the fake destroys the sandbox."""

    async def __aenter__(self) -> None:
        if not self._is_started:
            self._is_started = True
            await self._sandbox.inject(Step.RUN)

    async def __aexit__(self, *_: object) -> None:
        return None


class _FakeSession(Session):
    """A session each of whose lines is an action of the script."""

    def __init__(self, inner: Session, sandbox: FakeSandbox) -> None:
        self._inner = inner
        self._sandbox = sandbox

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        if self._inner.alive:
            await self._sandbox.inject(Step.RUN)
        return await self._inner.run(line, timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)

    async def interrupt(self) -> None:
        await self._inner.interrupt()

    async def close(self) -> None:
        await self._inner.close()
