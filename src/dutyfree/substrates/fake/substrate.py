"""The substrate that injects delays and failures around another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.failure import await_on_failure
from dutyfree.model import SandboxSpec
from dutyfree.substrates import registry
from dutyfree.substrates.fake.options import Failure, Latencies, Script, Step
from dutyfree.substrates.fake.sandbox import FakeSandbox
from dutyfree.substrates.forwarding import ForwardingSubstrate


class FakeSubstrate(ForwardingSubstrate):
    """`inner`, by name or itself, with `latencies` and `failures`. The same `seed` gives the same injections."""

    name = "fake"

    def __init__(
        self,
        inner: str | Substrate = "process",
        *,
        latencies: Latencies = Latencies(),  # noqa: B008  # frozen
        failures: Iterable[Failure] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(registry.load(inner) if isinstance(inner, str) else inner)
        self._script = Script(latencies, failures, seed)
        self._living: set[FakeSandbox] = set()

    @property
    def living(self) -> frozenset[FakeSandbox]:
        """The sandboxes that were created and not destroyed, for tests that look for leaks."""
        return frozenset(self._living)

    @property
    def struck(self) -> Counter[Step]:
        """How many calls of each step got a failure so far."""
        return self._script.struck

    async def open(self) -> None:
        await self.inner.open()

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        injection = self._script.draw(Step.CREATE)
        sandbox = FakeSandbox(await self.inner.create(spec, on_span), self._script, self._living, on_span)
        async with await_on_failure(sandbox.end):
            await sandbox.inject(Step.CREATE, injection)
            await sandbox.inject(Step.READY)
        return sandbox

    async def close(self) -> None:
        """As the contract says; injected failures of DESTROY do not count here, so that nothing is left."""
        try:
            await asyncio.gather(*(sandbox.end() for sandbox in self.living))
        finally:
            await self.inner.close()
