"""One sandbox: the contract over a body that can be replaced."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dutyfree.contract import ActionStream, Sandbox, Session, Snapshot, SpanListener, Terminal
from dutyfree.errors import SandboxGone, Unsupported
from dutyfree.guest.runner import Runner
from dutyfree.model import (
    Action,
    ActionPath,
    Capability,
    Command,
    Metrics,
    Network,
    Observation,
    Phase,
    SandboxSpec,
    Usage,
    User,
)
from dutyfree.substrates.engine.body import Body, Marks
from dutyfree.substrates.engine.exec_path import ExecFiles, ExecPath
from dutyfree.substrates.forking import check_count
from dutyfree.substrates.metering import with_limits
from dutyfree.substrates.replaceable import ReplaceableSandbox, was_reset
from dutyfree.threads import in_thread
from dutyfree.wire.action_channel import ActionChannel

if TYPE_CHECKING:
    from dutyfree.substrates.engine.substrate import EngineSubstrate

MAX_FORKS = 1024
FORKS_AT_ONCE = 4
_numbers = itertools.count(1)


class EngineSandbox(ReplaceableSandbox):
    """Actions go to the body's own guest, or, on the exec path, each to a guest of its own."""

    def __init__(self, substrate: EngineSubstrate, body: Body, spec: SandboxSpec, on_span: SpanListener | None) -> None:
        super().__init__(
            f"{substrate.name}-{os.getpid()}-{next(_numbers)}", body.channel, destroy=self._end, env=body.env,
            cwd=body.cwd, limits=body.limits, unenforced=body.unenforced, on_span=on_span,
            one_user=None if Capability.USERS in substrate.capabilities else f"{substrate.name} has none",
            ports=spec.network is not Network.HOST and Capability.PORTS in substrate.capabilities,
        )  # fmt: skip
        self._substrate = substrate
        self._body = body
        self._leaving: list[Body] = []
        """Bodies that a reset has replaced, until nothing is left of them."""
        self._spec = spec
        self._exec: ExecPath | None = None
        if substrate.path is ActionPath.EXEC:
            self._exec = ExecPath(self._runner, lambda: self.body)
            self.files = ExecFiles(self._exec)

    @property
    def body(self) -> Body:
        """Its current body. Raises SandboxGone."""
        self._check()
        return self._body

    @property
    def pid(self) -> int | None:
        return self._body.pid

    @property
    def runner(self) -> Runner | None:
        return super().runner if self._exec is None else None

    async def run(self, action: Action) -> Observation:
        return await (super().run(action) if self._exec is None else self._exec.run(action))

    def stream(self, action: Action) -> ActionStream:
        self._check_running()
        return super().stream(action) if self._exec is None else self._exec.stream(action)

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        if self._exec is not None:
            return await self._exec.session(cwd, env, user)
        return await super().session(cwd=cwd, env=env, user=user)

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
        if self._exec is not None:
            return await self._exec.terminal(command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)
        return await super().terminal(command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)

    def usage(self) -> Usage | None:
        return self.body.usage()

    async def metrics(self) -> Metrics:
        seen = await in_thread(self.body.metrics)
        return with_limits(seen, self._spec.resources, self.unenforced)

    async def pause(self) -> None:
        self._needs(Capability.PAUSE)
        await super().pause()

    async def _stop(self) -> None:
        await self._body.pause()

    async def _go(self) -> None:
        await self._body.resume()

    @property
    def _clock_stops(self) -> bool:
        return self._body.clock_stops

    def _channels(self) -> Sequence[ActionChannel]:
        return [*super()._channels(), *(() if self._exec is None else self._exec.channels)]

    async def reset(self) -> None:
        self._needs(Capability.RESET)
        await super().reset()

    async def _replace(self) -> None:
        """Replace the body by another one from the same spec, and end the old one."""
        old, leaving = self._body, self._runner.channel
        body = await self._substrate.make_body(self._spec, Marks())
        if not self.alive:  # it was destroyed, or died, meanwhile
            body.channel.close()
            await asyncio.shield(body.end())
            raise SandboxGone(f"sandbox {self.id} is gone")
        self._body = body
        self._leaving.append(old)
        self._runner.move_to(body.channel, body.limits)
        leaving.fail(was_reset())
        if self._exec is not None:
            self._exec.fail(was_reset())
        await asyncio.shield(old.end())
        self._leaving.remove(old)

    async def snapshot(self) -> Snapshot:
        self._needs(Capability.SNAPSHOT)
        start_ns = time.monotonic_ns()
        async with self._turn:
            self._check_running()
            snapshot = await self.body.snapshot()
        self._report(Phase.SNAPSHOT, start_ns)
        return snapshot

    async def fork(self, count: int) -> list[Sandbox]:
        self._needs(Capability.FORK)
        check_count(count, MAX_FORKS)
        snapshot = await self.snapshot()
        try:
            spec = replace(self._spec, image=snapshot.image)
            return await self._multiplied(
                lambda: self._substrate.create(spec, self._runner.on_span), count, FORKS_AT_ONCE
            )
        finally:
            await snapshot.discard()

    async def _end(self) -> None:
        self._ended = True
        if self._exec is not None:
            self._exec.close()
        async with self._turn:  # a reset or a snapshot under way must not leave a body behind
            for body in (self._body, *self._leaving):
                await body.end()
        self._substrate.forget(self)

    def _needs(self, capability: Capability) -> None:
        if capability not in self._substrate.capabilities:
            raise Unsupported(f"substrate {self._substrate.name!r} lacks {capability.value}")
