"""The checks of egress find out a host, or a sandbox, that serves too little or too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import Listener, Sandbox, SpanListener
from dutyfree.egress.resolver import Resolver
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import SandboxSpec
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.testing import Outcome, all_checks, run_conformance


async def outcome(substrate: CellSubstrate, check: str) -> Outcome:
    checks = [one for one in all_checks() if one.id == check]
    assert len(checks) == 1
    try:
        report = await run_conformance(substrate, checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    return report.results[0].outcome


async def test_a_host_without_a_resolver_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def no_answer(self: Resolver, data: bytes) -> None:
        return None

    monkeypatch.setattr(Resolver, "answer", no_answer)
    assert await outcome(CellSubstrate(store=tmp_path), "egress.carried") is Outcome.FAILED


class Clinging(CellSubstrate):
    """Its listeners stay when they are closed."""

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)
        real = sandbox.listen

        async def listen(port: int, **options: Any) -> Listener:
            listener = await real(port, **options)

            async def close() -> None:
                pass

            listener.close = close  # type: ignore[method-assign]
            return listener

        sandbox.listen = listen  # type: ignore[method-assign, assignment]
        return sandbox


async def test_a_sandbox_whose_listeners_stay_is_found_out(tmp_path: Path) -> None:
    assert await outcome(Clinging(store=tmp_path), "egress.ended") is Outcome.FAILED
