"""Tokens while a server runs: made, limited and revoked, natively and over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

import dutyfree
from support.e2b_client import Raw
from support.serving import Serving, serving
from support.serving import dutyfree as command

REVOKED_S = 2.0
"""How soon a revoked token must be refused."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server") / "state") as server:
        yield server


def test_tokens_are_listed_without_their_secrets(server: Serving) -> None:
    token = server.make_token("listed", "--owner", "team", "--sandboxes", "7", "--per-minute", "9", "--operator")
    shown = command("token", "list", "--json", "--directory", str(server.directory)).stdout
    assert token not in shown
    entry = next(each for each in json.loads(shown) if each["name"] == "listed")
    assert (entry["owner"], entry["max_sandboxes"], entry["leases_per_minute"]) == ("team", 7, 9)
    again = command("token", "create", "listed", "--directory", str(server.directory), code=2)
    assert "there is a token 'listed' already" in again.stderr
    assert (
        "no token 'nobody'" in command("token", "revoke", "nobody", "--directory", str(server.directory), code=2).stderr
    )


async def test_a_revoked_token_is_refused_on_open_connections_too(server: Serving) -> None:
    token = server.make_token("leaving")
    raw = Raw(server.port, token)
    async with dutyfree.connect(server.native, token=server.token) as other:
        async with dutyfree.connect(server.native, token=token) as host:
            box = await host.acquire()
            assert (await box.run(["true"])).ok
            assert raw.send("GET", "/v2/sandboxes").status == 200
            await asyncio.to_thread(server.revoke_token, "leaving")
            revoked_s = time.monotonic()
            with pytest.raises(dutyfree.Unauthenticated):
                await _ask_until(host, revoked_s + REVOKED_S)
            while raw.send("GET", "/v2/sandboxes").status != 401:
                assert time.monotonic() - revoked_s < REVOKED_S
            with pytest.raises(dutyfree.Unauthenticated):
                await host.acquire()
            with pytest.raises(dutyfree.DutyfreeError):
                await box.run(["true"])
            with pytest.raises(dutyfree.Unauthenticated):
                await dutyfree.connect(server.native, token=token).__aenter__()
        assert await other.find_leases() == []  # clients with other tokens go on


async def _ask_until(host: dutyfree.Host, end_s: float) -> None:
    while time.monotonic() < end_s:
        await host.find_leases()
        await asyncio.sleep(0.02)


async def test_the_limit_of_sandboxes_holds_for_both_faces_together(server: Serving) -> None:
    token = server.make_token("few", "--sandboxes", "2")
    raw = Raw(server.port, token)
    made = raw.create(timeout=60)
    async with dutyfree.connect(server.native, token=token) as host, host.lease():
        with pytest.raises(dutyfree.CapacityError, match="2 sandboxes of this owner") as full:
            await host.acquire()
        assert full.value.retry_after_s
        refused = raw.send("POST", "/v2/sandboxes", {"templateID": "base"})
        assert (refused.status, refused.headers["should-retry"], refused.headers["retry-after"]) == (429, "true", "1")
        assert raw.send("DELETE", f"/sandboxes/{made['sandboxID']}").status == 204
        async with host.lease():
            assert raw.send("POST", "/v2/sandboxes", {"templateID": "base"}).status == 429
    assert raw.send("GET", "/v2/sandboxes").json == []
    unlimited = server.raw.create(timeout=60)  # others are not limited
    server.raw.send("DELETE", f"/sandboxes/{unlimited['sandboxID']}")


async def test_the_limit_of_leases_in_a_minute_holds_for_both_faces_together(server: Serving) -> None:
    token = server.make_token("slow", "--per-minute", "3")
    raw = Raw(server.port, token)
    for _ in range(2):
        made = raw.create(timeout=60)
        raw.send("DELETE", f"/sandboxes/{made['sandboxID']}")
    async with dutyfree.connect(server.native, token=token) as host:
        async with host.lease():
            pass
        with pytest.raises(dutyfree.CapacityError, match="within a minute") as full:
            await host.acquire()
        assert full.value.retry_after_s is not None
        assert 30 < full.value.retry_after_s <= 60
    refused = raw.send("POST", "/v2/sandboxes", {"templateID": "base"})
    assert (refused.status, refused.headers["should-retry"]) == (429, "true")
    assert 30 < int(refused.headers["retry-after"]) <= 60


async def test_owners_see_nothing_of_each_other_natively(server: Serving) -> None:
    ann, bob = server.make_token("ann"), server.make_token("bob")
    async with (
        dutyfree.connect(server.native, token=ann) as hers,
        dutyfree.connect(server.native, token=bob) as his,
        hers.lease(labels={"name": "hers"}) as box,
    ):
        unknown = "l" + "0" * (len(box.lease.id) - 1)
        words = []
        for lease_id in (box.lease.id, unknown):
            for call in (his.get, his.release):
                with pytest.raises(dutyfree.LeaseLost) as lost:
                    await call(lease_id)
                words.append(str(lost.value).replace(lease_id, "ID"))
        assert len(set(words)) == 1
        assert await his.find_leases() == []
        assert await his.find_leases(owner="ann") == []
        with pytest.raises(dutyfree.InvalidRequest):
            await his.acquire(owner="ann")
        assert (await box.run(["true"])).ok
