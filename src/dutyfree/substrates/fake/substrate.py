"""The substrate that creates sandboxes in memory."""

from __future__ import annotations

import asyncio

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import InvalidRequest, LinkFailed, SubstrateFailed
from dutyfree.model import Capability, Isolation, Phase, SandboxSpec
from dutyfree.substrates.fake.sandbox import FakeSandbox
from dutyfree.substrates.fake.script import FakeScript, FaultKind, Performer, Step
from dutyfree.trace import timed


class FakeSubstrate(Substrate):
    """Sandboxes in memory, with the latency and the faults of `script`; the same `seed` gives the same performance."""

    name = "fake"
    isolation = Isolation.NONE

    def __init__(self, *, script: FakeScript | None = None, seed: int = 0) -> None:
        self._performer = Performer(script or FakeScript(), seed)
        self._living: set[FakeSandbox] = set()
        self._created = 0
        self._is_open = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.FILES, Capability.PRIVATE_FILES, Capability.HOST_NETWORK})

    @property
    def living(self) -> frozenset[FakeSandbox]:
        """The sandboxes that are alive: what a leak of this substrate would show in."""
        return frozenset(self._living)

    async def open(self) -> None:
        self._is_open = True

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        if not self._is_open:
            raise InvalidRequest("the substrate is not open")
        self.check(spec)
        self._created += 1
        name = f"fake-{self._created}"
        fault = self._performer.fault(Step.CREATE)
        with timed(on_span, Phase.CREATE, sandbox=name):
            await self._performer.delay(Phase.CREATE)
            if fault is FaultKind.FAIL:
                raise SubstrateFailed(f"sandbox {name} could not be created, as scripted")
            if fault is FaultKind.DIE:
                raise LinkFailed(f"sandbox {name} died while it was created, as scripted")
            if fault is FaultKind.HANG:
                await asyncio.get_running_loop().create_future()
        with timed(on_span, Phase.READY, sandbox=name):
            await self._performer.delay(Phase.READY)
        sandbox = FakeSandbox(name, spec, self._performer, on_span, self._living.discard)
        self._living.add(sandbox)
        if fault is FaultKind.LIE:
            sandbox.die()
        return sandbox

    async def close(self) -> None:
        self._is_open = False
        await asyncio.gather(*(sandbox.destroy() for sandbox in self.living))
