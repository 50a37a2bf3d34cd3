"""Orders at a cloud that is slow, fails, or is shared with others: none is left, and none of others' is touched."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dutyfree import claims
from dutyfree.claims import Claim
from dutyfree.errors import DeadlineExceeded, InvalidRequest, SubstrateFailed
from dutyfree.model import SandboxSpec
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.vm import VMSubstrate
from dutyfree.substrates.vm import calls as calls_module
from dutyfree.substrates.vm import cloud as cloud_module
from dutyfree.substrates.vm.cloud import KIND, CloudProvider
from dutyfree.substrates.vm.cloud_config import parse


class Cloud:
    """A driver whose calls take as long as they are told to."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.may_create = threading.Event()
        self.may_create.set()
        self.creating = threading.Event()
        self.refusals = 0
        self.destructions = 0

    def list_images(self) -> list[Any]:
        return [SimpleNamespace(id="1", name="one")]

    list_sizes = list_images

    def list_nodes(self) -> list[Any]:
        return list(self.nodes)

    def create_node(self, name: str, **_: Any) -> Any:
        self.creating.set()
        assert self.may_create.wait(30)
        node = SimpleNamespace(id=name, name=name, public_ips=["127.0.0.1"], private_ips=[])
        self.nodes.append(node)
        return node

    def destroy_node(self, node: Any) -> bool:
        self.destructions += 1
        time.sleep(0.05)
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("https://cloud/?key=s3cr%2Ft")
        self.nodes.remove(node)
        return True


@pytest.fixture
def server() -> Iterator[int]:
    """The port of what looks like an SSH server."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"SSH-2.0-nothing\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.may_create.set()


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Claim:
    monkeypatch.setattr(claims, "state_base", lambda: tmp_path / "run")
    return claims.claim(KIND)


@pytest.fixture
async def provider(
    cloud: Cloud, claim: Claim, server: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CloudProvider]:
    monkeypatch.setattr(CloudProvider, "_connect", lambda self: cloud)
    table = {"provider": "ec2", "image": "1", "size": "1", "private_key": "/k", "port": server}
    made = CloudProvider(parse({"cloud": {**table, "driver": {"key": "s3cr/t"}}}, {}))
    await made.open(claim)
    yield made
    await made.close()
    claim.release()


def left_by_the_dead(name: str, *, noted: bool) -> str:
    """A claim's directory whose process is dead, and the name of a machine that it may have ordered."""
    directory = claims.state_base() / KIND / name
    directory.mkdir()
    (directory / claims.LOCK).touch()
    machine = f"dutyfree-{name}-0123abcd"
    if noted:
        (directory / f"{machine}.ordered").touch()
    return machine


async def test_a_machine_that_comes_late_is_destroyed(
    provider: CloudProvider, cloud: Cloud, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "CALL_TIMEOUT_S", 0.2)
    cloud.may_create.clear()
    with pytest.raises(DeadlineExceeded):
        await provider.make(SandboxSpec(), Marks())
    assert list(claim.directory.glob("*.ordered"))
    cloud.may_create.set()
    assert provider._calls is not None
    await provider._calls.settle(within_s=5)
    assert cloud.destructions == 1
    assert not cloud.nodes
    assert not list(claim.directory.glob("*.ordered"))


async def test_closing_waits_for_orders_and_refuses_those_that_were_not_begun(
    provider: CloudProvider, cloud: Cloud
) -> None:
    cloud.may_create.clear()
    orders = [asyncio.create_task(provider.make(SandboxSpec(), Marks())) for _ in range(2)]
    assert await asyncio.to_thread(cloud.creating.wait, 5)
    orders[0].cancel()
    closing = asyncio.create_task(provider.close())
    await asyncio.sleep(0.1)
    assert not closing.done()
    cloud.may_create.set()
    await closing
    outcomes = await asyncio.gather(*orders, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert isinstance(outcomes[1], InvalidRequest)
    assert not cloud.nodes


async def test_a_close_that_cannot_destroy_a_machine_says_so_and_keeps_its_note(
    provider: CloudProvider, cloud: Cloud, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_module, "CLOSE_TIMEOUT_S", 0.2)
    node = await provider.make(SandboxSpec(), Marks())
    cloud.refusals = 2
    with pytest.raises(SubstrateFailed, match=r"key=\*\*\*"):
        await node.end()
    with pytest.raises(SubstrateFailed):
        await provider.close()
    assert list(claim.directory.glob("*.ordered"))
    await node.end()
    assert not cloud.nodes


async def test_the_claim_stays_on_disk_where_a_machine_may_be_left(
    provider: CloudProvider, cloud: Cloud, tmp_path: Path
) -> None:
    substrate = VMSubstrate(store=tmp_path / "images")
    substrate._provider = provider
    await substrate.open()
    ours = substrate._claim
    assert ours is not None
    await provider.make(SandboxSpec(), Marks())
    cloud.refusals = 1
    with pytest.raises(SubstrateFailed):
        await substrate.close()
    assert list(ours.directory.glob("*.ordered"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours.lock_fd)


async def test_all_who_end_a_machine_at_once_see_how_it_went(provider: CloudProvider, cloud: Cloud) -> None:
    node = await provider.make(SandboxSpec(), Marks())
    cloud.refusals = 1
    first, second = await asyncio.gather(node.end(), node.end(), return_exceptions=True)
    assert isinstance(first, SubstrateFailed)
    assert isinstance(second, SubstrateFailed)
    assert cloud.destructions == 1
    cancelled = asyncio.create_task(node.end())
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await node.end()
    await node.end()
    assert cloud.destructions == 2
    assert not cloud.nodes


async def test_a_machine_that_is_gone_already_is_destroyed(provider: CloudProvider, cloud: Cloud) -> None:
    node = await provider.make(SandboxSpec(), Marks())
    cloud.nodes.clear()
    await node.end()


async def test_only_machines_that_dead_claims_of_this_host_have_noted_are_destroyed(
    provider: CloudProvider, cloud: Cloud, claim: Claim
) -> None:
    _, moment, boot = claim.name.split("-")
    dead = left_by_the_dead(f"4194304-{moment}-{boot}", noted=True)
    of_other_host = left_by_the_dead(f"4194305-{moment}-{boot}", noted=False)
    nowhere = f"dutyfree-4194306-{moment}-{boot}-0123abcd"
    elsewhere = left_by_the_dead(f"4194307-{moment}-{boot}", noted=True)
    alive = await provider.make(SandboxSpec(), Marks())
    for name in (dead, of_other_host, nowhere, "web-server-1", None):
        cloud.nodes.append(SimpleNamespace(id=str(name), name=name))
    await provider.open(claim)
    names = {node.name for node in cloud.nodes}
    assert names >= {of_other_host, nowhere, "web-server-1", None}
    assert dead not in names
    assert len(names) == 5, "the live claim's machine is gone"
    kept = {path.name for path in (claims.state_base() / KIND).iterdir()}
    assert kept == {claim.name, elsewhere.removeprefix("dutyfree-").removesuffix("-0123abcd")}
    await alive.end()


async def test_a_sweep_that_fails_forgets_nothing(provider: CloudProvider, cloud: Cloud, claim: Claim) -> None:
    _, moment, boot = claim.name.split("-")
    dead = left_by_the_dead(f"4194304-{moment}-{boot}", noted=True)
    cloud.nodes.append(SimpleNamespace(id=dead, name=dead))
    cloud.refusals = 1
    with pytest.raises(SubstrateFailed):
        await provider.open(claim)
    await provider.open(claim)
    assert not cloud.nodes


async def test_what_a_closed_substrate_could_not_destroy_goes_with_the_next_one(
    provider: CloudProvider, cloud: Cloud, tmp_path: Path
) -> None:
    substrates = [VMSubstrate(store=tmp_path / "images") for _ in range(2)]
    for each in substrates:
        each._provider = provider
    await substrates[0].open()
    await provider.make(SandboxSpec(), Marks())
    cloud.refusals = 1
    with pytest.raises(SubstrateFailed):
        await substrates[0].close()
    assert len(cloud.nodes) == 1
    await substrates[1].open()
    assert not cloud.nodes
    await substrates[1].close()


async def test_the_public_half_lies_beside_the_key_whatever_its_name(
    tmp_path: Path, claim: Claim, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CloudProvider, "_connect", lambda self: cloud)
    key = tmp_path / "id_ed25519.cloud"
    table = {"provider": "ec2", "image": "1", "size": "1", "private_key": str(key), "user_data": "ex_userdata"}
    provider = CloudProvider(parse({"cloud": table}, {}))
    (tmp_path / "id_ed25519.pub").write_text("another's")
    with pytest.raises(InvalidRequest, match=r"id_ed25519\.cloud\.pub"):
        await provider.open(claim)
    (tmp_path / "id_ed25519.cloud.pub").write_text("ssh-ed25519 AAAA ours\n")
    await provider.open(claim)
    identity = await provider._identity(claim, "box", "box")
    assert identity is not None
    assert identity.authorised_key == "ssh-ed25519 AAAA ours"
    await provider.close()
    claim.release()
