"""Each probe of egress fails on a host, or a sandbox, that lets through what the probe tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import Listener, Sandbox, SpanListener
from dutyfree.egress import connector, sni
from dutyfree.egress.addresses import refusal, unmapped
from dutyfree.egress.connector import Connector, Upstream
from dutyfree.egress.http_body import SizedBody
from dutyfree.egress.relay import Relay
from dutyfree.egress.rules import Decision, Rules
from dutyfree.egress.service import EgressService
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import SandboxSpec
from dutyfree.model.hostname import Address
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.testing.isolation import PROBES, CannotCompile, Outcome, Prober, Result, compile_program

HOARD_BYTES = 8 * 1024 * 1024
real_first = Connector._first


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_program(tmp_path_factory.mktemp("probe"))
    except CannotCompile as error:
        pytest.skip(f"isolation probes: no probe program: {error}")


async def result_of(substrate: CellSubstrate, probe: str, program: Path) -> Result:
    (chosen,) = [one for one in PROBES if one.id == probe]
    try:
        async with Prober(substrate, program) as prober:
            result = await prober.run(chosen)
    except SubstrateUnavailable as error:
        pytest.skip(f"isolation probes on cell: {error}")
    if result.outcome is Outcome.NOT_RUN:
        pytest.skip(f"{probe}: {result.reason}")
    return result


def allow_all(self: Rules, host: object, port: int) -> Decision:
    return Decision(True, "all", private=True)


def no_refusal(*_: object) -> None:
    pass


def loopback_is_public(address: Address, **options: bool) -> str:
    """No other address: a test must not connect to machines of the network."""
    return "" if unmapped(address).is_loopback else refusal(address, **options)


async def look_up_again(self: Connector, addresses: list[Any], port: int, private: bool, *, literal: bool) -> Upstream:
    return await real_first(self, await self._resolve("again"), port, private, literal=literal)


def endless(self: SizedBody, data: bytes) -> bytes:
    return data


def hoard(self: Relay) -> None:
    hoarded = self.__dict__.setdefault("hoarded", bytearray())
    hoarded += self._upstream.recv(65536)
    if len(hoarded) < 65536:
        self._client.write_now(hoarded[:1])
    if len(hoarded) >= HOARD_BYTES:
        self._loop.remove_reader(self._upstream)


async def accept_all(self: EgressService, listener: Listener, serve: Any) -> None:
    while True:
        self._spawn(serve(await listener.accept()))


def every_port(self: Rules, host: object) -> tuple[int, ...]:
    return (443,)


@pytest.mark.parametrize(
    ("place", "name", "lie", "probe"),
    [
        (connector, "refusal", loopback_is_public, "literals"),
        (connector, "refusal", loopback_is_public, "ipv6"),
        (connector, "refusal", loopback_is_public, "rebinding"),
        (Connector, "_first", look_up_again, "rebinding"),
        (Rules, "decide", allow_all, "names"),
        (Rules, "decide", allow_all, "redirects"),
        (sni, "check", no_refusal, "tls-name"),
        (SizedBody, "feed", endless, "headers"),
        (Rules, "ports_of", every_port, "lookups"),
        (Relay, "_readable", hoard, "slow-readers"),
        (EgressService, "_accept", accept_all, "swarm"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
async def test_a_host_that_lets_too_much_through_is_found_out(
    place: Any, name: str, lie: Any, probe: str, program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(place, name, lie)
    result = await result_of(CellSubstrate(store=tmp_path), f"egress.{probe}", program)
    assert result.outcome is Outcome.FAILED, result.reason


class Shared(CellSubstrate):
    """All its sandboxes are the first one."""

    first: Sandbox | None = None

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)
        self.first = self.first or sandbox
        sandbox.run = self.first.run  # type: ignore[method-assign]
        return sandbox


async def test_a_sandbox_that_shares_its_loopback_is_found_out(program: Path, tmp_path: Path) -> None:
    result = await result_of(Shared(store=tmp_path), "egress.neighbour", program)
    assert result.outcome is Outcome.FAILED, result.reason


def test_each_probe_is_tried() -> None:
    """A new probe of egress needs its proof above."""
    tried = {"egress.neighbour"}
    for mark in test_a_host_that_lets_too_much_through_is_found_out.pytestmark:
        tried |= {f"egress.{case[3]}" for case in mark.args[1]}
    assert tried == {probe.id for probe in PROBES if probe.id.startswith("egress.")}
