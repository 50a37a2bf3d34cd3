"""A cloud, as far as it can be tried without an account: Libcloud's own dummy, whose machines are a local one's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dutyfree import claims
from dutyfree.errors import InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.model import Action, Capability
from dutyfree.substrates.vm import VMSubstrate
from dutyfree.substrates.vm.cloud import KIND
from support.engines import OTHER_MACHINES
from support.machines import SMALL, machines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), OTHER_MACHINES]
providers = pytest.importorskip("libcloud.compute.providers", reason="cloud machines: Apache Libcloud is not installed")
DRIVER = "dutyfree-test"
NODES: list[Any] = []


def driver() -> Any:
    """Libcloud's dummy, with the names that it is given, and one list of machines for all of its users."""
    from libcloud.compute.drivers.dummy import DummyNodeDriver

    class NamedDummy(DummyNodeDriver):  # type: ignore[misc]
        def __init__(self, creds: str) -> None:
            super().__init__(creds)
            self.nl = NODES

        def create_node(self, name: str, size: Any, image: Any, **more: Any) -> Any:
            if more.get("fails"):
                raise RuntimeError("quota exceeded")
            node = super().create_node(name=name, size=size, image=image)
            node.name = name
            node.public_ips = ["127.0.0.1"]
            return node

    return NamedDummy


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    NODES.clear()
    monkeypatch.setitem(providers.DRIVERS, DRIVER, (__name__, "driver_class"))
    monkeypatch.setattr(sys.modules[__name__], "driver_class", driver(), raising=False)

    def make(*, key: Path = tmp_path / "key", port: int = 22, image: str = "1", node: str = "") -> VMSubstrate:
        file = tmp_path / "cloud.toml"
        file.write_text(
            f'[cloud]\nprovider = "{DRIVER}"\nimage = "{image}"\nsize = "Small"\nprivate_key = "{key}"\nport = {port}\n'
            f'boot_timeout_s = 30\n[cloud.driver]\ncreds = "$CREDENTIALS"\n[cloud.node]\n{node}\n'
        )
        monkeypatch.setenv("CREDENTIALS", "none")
        return VMSubstrate(provider="cloud", config=file)

    return make


@asynccontextmanager
async def local_machine() -> AsyncIterator[tuple[Path, int]]:
    """The key and the port of a machine that stands for the cloud's."""
    substrate = machines(boot="restore")
    try:
        await substrate.open()
    except SubstrateUnavailable as error:
        pytest.skip(f"machines: {error}")
    try:
        box = await substrate.create(SMALL)
        login = box.body._node.login  # type: ignore[attr-defined]
        yield login.key, login.port
    finally:
        await substrate.close()


async def test_a_machine_is_ordered_used_and_destroyed(cloud: Any) -> None:
    async with local_machine() as (key, port), cloud(key=key, port=port) as substrate:
        box = await substrate.create(SMALL)
        (name,) = [node.name for node in NODES if node.name.startswith("dutyfree-")]
        assert substrate._claim.name in name
        assert (await box.run(Action("echo here"))).text == "here\n"
        assert {each.what for each in box.unenforced} >= {Capability.LIMIT_MEMORY, Capability.DENY_NETWORK}
        await box.destroy()
        assert not [node for node in NODES if node.name.startswith("dutyfree-")]


async def test_machines_that_dead_claims_noted_are_destroyed_and_no_others(cloud: Any) -> None:
    claim = claims.claim(KIND)
    _, moment, boot = claim.name.split("-")
    dead, unknown = f"4194304-{moment}-{boot}", f"4194305-{moment}-{boot}"
    ordered = claim.directory.with_name(dead) / f"dutyfree-{dead}-1.ordered"
    ordered.parent.mkdir(mode=0o700)
    ordered.touch()
    ours = {f"dutyfree-{claim.name}-1", f"dutyfree-{unknown}-1", "somebody-elses"}
    for name in (ordered.stem, *ours):
        node = driver()("none").create_node(name=name, size=None, image=None)
        assert node.name == name
    async with cloud():
        names = [node.name for node in NODES]
    claim.release()
    assert ordered.stem not in names
    assert ours <= set(names)
    assert not ordered.parent.exists()


async def test_what_the_cloud_refuses_is_told(cloud: Any) -> None:
    with pytest.raises(InvalidRequest, match="no image 'gone'"):
        await cloud(image="gone").open()
    async with cloud(node="fails = true") as substrate:
        with pytest.raises(SubstrateFailed, match="quota exceeded"):
            await substrate.create(SMALL)


async def test_an_order_that_is_cancelled_leaves_no_machine(cloud: Any) -> None:
    async with cloud(port=1) as substrate:
        creation = asyncio.create_task(substrate.create(SMALL))
        await asyncio.sleep(0.5)
        assert [node for node in NODES if node.name.startswith("dutyfree-")]
        creation.cancel()
        with suppress(asyncio.CancelledError):
            await creation
        assert not [node for node in NODES if node.name.startswith("dutyfree-")]
