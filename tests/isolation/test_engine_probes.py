"""The isolation probes on every engine of this machine; each is opened once, and all probes are tried on it.

But for what the host's side of egress decides, which is the same code for all engines: Docker and cells are enough.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import SandboxSpec
from dutyfree.testing.gaps import known_probe_gaps
from dutyfree.testing.isolation import PROBES, CannotCompile, Outcome, Probe, Prober, compile_program
from support.engines import ENGINES, MACHINES, OTHER_MACHINES, engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.flaky(reruns=1)]

HOST_SIDE = ("literals", "ipv6", "names", "rebinding", "redirects", "tls-name", "headers")
"""Probes of egress that the host answers. `make conformance` tries them on every engine."""


def cases() -> list[object]:
    return [
        pytest.param(name, probe, id=f"{name}-{probe.id}", marks=marks(name, probe))
        for name in ENGINES
        for probe in PROBES
        if is_tried(name, probe)
    ]


def is_tried(name: str, probe: Probe) -> bool:
    is_shared = probe.id in {f"egress.{each}" for each in HOST_SIDE}
    return not is_shared or name == "docker" or bool(os.environ.get("EVERY_CHECK"))


def marks(name: str, probe: Probe) -> list[pytest.MarkDecorator]:
    gap = known_probe_gaps(name).get(probe.id)
    group = OTHER_MACHINES if name in MACHINES else pytest.mark.xdist_group(f"{name}-probes")
    return [group, *([pytest.mark.xfail(strict=True, reason=gap)] if gap else [])]


class Probers:
    """One substrate at a time, or why there is none."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._stack = AsyncExitStack()
        self._name = ""
        self._prober: Prober | SubstrateUnavailable | None = None

    async def of(self, name: str) -> Prober:
        if name != self._name:
            await self.close()
            self._name = name
            try:
                substrate = engine(name)
                self._prober = await self._stack.enter_async_context(Prober(substrate, self._program))
                await (await substrate.create(SandboxSpec())).destroy()  # what only the first of all pays
            except SubstrateUnavailable as error:
                self._prober = error
        if isinstance(self._prober, SubstrateUnavailable):
            raise self._prober
        assert self._prober is not None
        return self._prober

    async def close(self) -> None:
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def probers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Probers]:
    try:
        program = compile_program(tmp_path_factory.mktemp("probe"))
    except CannotCompile as error:
        pytest.skip(f"isolation probes: no probe program: {error}")
    keeper = Probers(program)
    yield keeper
    await keeper.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "probe"), cases())
async def test_promise_is_kept(name: str, probe: Probe, probers: Probers) -> None:
    try:
        prober = await probers.of(name)
    except SubstrateUnavailable as error:
        pytest.skip(f"isolation probes on {name}: {error}")
    result = await prober.run(probe)
    if result.outcome is Outcome.NOT_RUN:
        pytest.skip(f"{name}: {result.id}: {result.reason}")
    assert result.outcome is not Outcome.FAILED, f"{result.promise}: {result.reason}"
