"""A substrate that breaks: failures strike real sandboxes, at every phase, with a seeded probability."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from dutyfree.contract import ActionStream, Sandbox, Session, Snapshot, SpanListener, Substrate, Terminal
from dutyfree.errors import LinkFailed, SubstrateFailed
from dutyfree.model import Action, Capability, Command, Isolation, Observation, SandboxSpec, Unenforced


class FaultySubstrate(Substrate):
    """`inner`, of which each creation, action, reset and destruction fails with `probability`."""

    def __init__(self, inner: Substrate, probability: float, seed: int) -> None:
        self.name = inner.name
        self.isolation: Isolation = inner.isolation
        self.inner = inner
        self.struck: Counter[str] = Counter()
        self.living: set[FaultySandbox] = set()
        self._probability = probability
        self._random = random.Random(seed)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.inner.capabilities

    async def open(self) -> None:
        await self.inner.open()

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await self.inner.create(spec, on_span)
        if self.strikes("create"):
            await sandbox.destroy()
            raise SubstrateFailed("the creation was made to fail")
        faulty = FaultySandbox(sandbox, self)
        self.living.add(faulty)
        return faulty

    async def close(self) -> None:
        await self.inner.close()

    def strikes(self, phase: str) -> bool:
        """Whether this one fails."""
        strikes = self._random.random() < self._probability
        self.struck[phase] += strikes
        return strikes


class FaultySandbox(Sandbox):
    """A sandbox of a faulty substrate."""

    def __init__(self, inner: Sandbox, substrate: FaultySubstrate) -> None:
        self.id = inner.id
        self.files = inner.files
        self._inner = inner
        self._substrate = substrate

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return self._inner.unenforced

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def run(self, action: Action) -> Observation:
        if self._substrate.strikes("run"):
            await self._inner.destroy()
            raise LinkFailed("the sandbox was made to die")
        return await self._inner.run(action)

    def stream(self, action: Action) -> ActionStream:
        return self._inner.stream(action)

    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Session:
        return await self._inner.session(cwd=cwd, env=env)

    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        return await self._inner.terminal(command, rows=rows, cols=cols, cwd=cwd, env=env)

    async def reset(self) -> None:
        if self._substrate.strikes("reset"):
            raise SubstrateFailed("the reset was made to fail")
        await self._inner.reset()

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def fork(self, count: int) -> list[Sandbox]:
        return await self._inner.fork(count)

    async def destroy(self) -> None:
        if self._substrate.strikes("destroy"):
            raise SubstrateFailed("the destruction was made to fail")
        await self._inner.destroy()
        self._substrate.living.discard(self)
