"""The checks of egress find out a host, or a sandbox, that lets too much through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import Listener, Sandbox, SpanListener
from dutyfree.egress import connector, sni
from dutyfree.egress.resolver import Resolver
from dutyfree.egress.rules import Decision, Rules
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


def allow_all(self: Rules, host: object, port: int) -> Decision:
    return Decision(True, "all", private=True)


def no_refusal(*_: object, **__: object) -> str:
    return ""


async def no_answer(self: Resolver, data: bytes) -> None:
    return None


@pytest.mark.parametrize(
    ("place", "name", "lie", "check"),
    [
        (Rules, "decide", allow_all, "egress.refused"),
        (connector, "refusal", no_refusal, "egress.rebinding"),
        (sni, "check", no_refusal, "egress.tls-name"),
        (Resolver, "answer", no_answer, "egress.carried"),
    ],
    ids=["rules", "addresses", "hellos", "resolver"],
)
async def test_a_host_that_checks_too_little_is_found_out(
    place: Any, name: str, lie: Any, check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(place, name, lie)
    assert await outcome(CellSubstrate(store=tmp_path), check) is Outcome.FAILED


class Shared(CellSubstrate):
    """All its sandboxes are the first one."""

    first: Sandbox | None = None

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)
        self.first = self.first or sandbox
        sandbox.run = self.first.run  # type: ignore[method-assign]
        return sandbox


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


@pytest.mark.parametrize(("liar", "check"), [(Shared, "egress.neighbour"), (Clinging, "egress.ended")])
async def test_a_sandbox_that_is_open_to_others_is_found_out(
    liar: type[CellSubstrate], check: str, tmp_path: Path
) -> None:
    assert await outcome(liar(store=tmp_path), check) is Outcome.FAILED
