"""Runs probes, each on a new sandbox."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, Unsupported
from dutyfree.model import Capability, Isolation
from dutyfree.testing.isolation.catalogue import PROBES
from dutyfree.testing.isolation.probe import ENVIRONMENT_SECRET, Broken, NotApplicable, Probe, Recorded, Scene, install
from dutyfree.testing.isolation.program import CannotCompile, compile_program
from dutyfree.testing.report import Outcome, Report, Result

PROBE_TIMEOUT_S = 90.0
WALLS = frozenset({Capability.DENY_NETWORK, Capability.PRIVATE_FILES})
"""Capabilities that isolate: probing them although they are unclaimed shows that a probe can fail."""


class Prober:
    """Opens a substrate and runs probes on it."""

    def __init__(self, substrate: Substrate, program: Path, *, beyond_claim: bool = False) -> None:
        """With `beyond_claim`, `run` also runs safe probes above the isolation level that the substrate claims."""
        self._substrate = substrate
        self._program = program
        self._beyond_claim = beyond_claim
        self._secret = secrets.token_hex(16)

    async def __aenter__(self) -> Self:
        os.environ[ENVIRONMENT_SECRET] = self._secret
        try:
            await self._substrate.open()
        except BaseException:
            del os.environ[ENVIRONMENT_SECRET]
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        os.environ.pop(ENVIRONMENT_SECRET, None)
        await self._substrate.close()

    async def run(self, probe: Probe) -> Result:
        """Run one probe. Errors go into the result and are not raised."""
        if reason := self._reason_against(probe):
            return Result(probe.id, probe.promise, Outcome.NOT_RUN, reason)
        notes: list[str] = []
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._try(probe, notes)
        except (NotApplicable, Unsupported) as reason:
            return Result(probe.id, probe.promise, Outcome.NOT_RUN, str(reason))
        except Recorded as seen:
            return Result(probe.id, probe.promise, Outcome.RECORDED, str(seen))
        except Broken as broken:
            return Result(probe.id, probe.promise, Outcome.FAILED, str(broken))
        except TimeoutError:
            return Result(
                probe.id, probe.promise, Outcome.FAILED, f"the probe did not end within {PROBE_TIMEOUT_S:.0f} s"
            )
        except (DutyfreeError, OSError) as error:
            return Result(probe.id, probe.promise, Outcome.FAILED, f"{type(error).__name__}: {error}")
        outcome = Outcome.RECORDED if probe.recorded else Outcome.PASSED
        return Result(probe.id, probe.promise, outcome, "; ".join(notes))

    def _reason_against(self, probe: Probe) -> str:
        claim = self._substrate.isolation
        if claim < probe.level and (probe.unsafe or not self._beyond_claim):
            harm = " and would harm the host without it" if probe.unsafe else ""
            return f"applies from level {probe.level.label} on{harm}; {self._substrate.name} claims {claim.label}"
        if probe.shared_kernel and claim >= Isolation.USER_KERNEL:
            return f"protects a shared kernel; {self._substrate.name} ({claim.label}) gives a sandbox one of its own"
        needs = probe.needs | {Capability.FILES}
        missing = needs - self._substrate.capabilities - (WALLS if self._beyond_claim else frozenset())
        if missing:
            return f"{self._substrate.name} lacks {', '.join(sorted(missing))} here"
        return ""

    async def _try(self, probe: Probe, notes: list[str]) -> None:
        home = f"/tmp/probe-{secrets.token_hex(6)}"
        sandbox = await self._substrate.create(probe.spec)
        try:
            await install(sandbox, self._program, home)
            scene = Scene(self._substrate, sandbox, probe.spec, self._program, home, self._secret, notes)
            try:
                await probe.check(scene)
            finally:
                if Capability.PRIVATE_FILES not in self._substrate.capabilities:
                    await sandbox.files.remove(home, recursive=True)
        finally:
            await sandbox.destroy()


async def run_probes(
    substrate: Substrate,
    *,
    probes: Iterable[Probe] = PROBES,
    beyond_claim: bool = False,
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Open the substrate, run every probe on a new sandbox, close the substrate.

    Raises SubstrateUnavailable and what else `open` and `close` raise. Without a C compiler no probe runs, and the
    report says so.
    """
    results: list[Result] = []

    def add(result: Result) -> None:
        results.append(result)
        if on_result:
            on_result(result)

    with tempfile.TemporaryDirectory(prefix="probe-program-") as directory:
        try:
            program = await asyncio.to_thread(compile_program, directory)
        except CannotCompile as error:
            for probe in probes:
                add(Result(probe.id, probe.promise, Outcome.NOT_RUN, f"no probe program: {error}"))
        else:
            async with Prober(substrate, program, beyond_claim=beyond_claim) as prober:
                for probe in probes:
                    add(await prober.run(probe))
    return Report(f"{substrate.name} ({substrate.isolation.label})", tuple(results))
