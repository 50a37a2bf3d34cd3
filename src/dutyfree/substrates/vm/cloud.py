"""Machines of a cloud, through Apache Libcloud."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from dutyfree.errors import DeadlineExceeded, InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.blocking import in_thread
from dutyfree.model import Capability, Phase, SandboxSpec, Unenforced
from dutyfree.substrates import claims
from dutyfree.substrates.claims import Claim
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.vm import cloud_config, seed, ssh
from dutyfree.substrates.vm.cloud_config import CloudConfig
from dutyfree.substrates.vm.provider import KIND, Node, Provider
from dutyfree.substrates.vm.seed import Identity
from dutyfree.substrates.vm.ssh import Login

PREFIX: Final = "dutyfree-"
"""Before the claim and the number in the names of our machines."""
CALL_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 2.0
_REASONS: Final = {
    Capability.LIMIT_MEMORY: "the machine has what its size gives it",
    Capability.LIMIT_CPU: "the machine has what its size gives it",
    Capability.LIMIT_PIDS: "a machine's kernel counts processes for the machine alone",
    Capability.LIMIT_DISK: "the machine has what its size gives it",
    Capability.DENY_NETWORK: "the cloud's own rules say what the machine reaches",
}
T = TypeVar("T")


class CloudNode(Node):
    """One machine of the cloud's."""

    def __init__(self, provider: CloudProvider, made: Any, login: Login) -> None:
        self._provider = provider
        self._made = made
        self.login = login

    def on_death(self, listener: Callable[[], None]) -> None:
        """Nobody tells: the connection's own questions go unanswered."""

    async def end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            try:
                await self._provider.destroy(made)
            except BaseException:
                self._made = made
                raise


class CloudProvider(Provider):
    """Machines of one size from one image. Each is named after our claim, and destroyed when it ends.

    What a killed process left is destroyed by the next one on the same machine, by those names: while there is none, it
    goes on costing money.
    """

    def __init__(self, config: CloudConfig) -> None:
        self.accelerator = f"cloud:{config.provider}"
        self._config = config
        self._driver: Any = None
        self._turn = threading.Lock()
        self._claim: Claim | None = None
        self._numbers = itertools.count(1)
        self._choice: tuple[Any, Any, Any] | None = None

    @classmethod
    def from_file(cls, path: str | Path | None) -> Self:
        """Raises InvalidRequest."""
        return cls(cloud_config.read(path))

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.BRIDGE_NETWORK})

    async def open(self, claim: Claim) -> None:
        self._driver = await in_thread(self._connected)
        self._choice = await self._call(self._chosen)
        self._claim = claim
        for node in await self._call(self._driver.list_nodes):
            if _is_left_over(node.name):
                await self.destroy(node)

    async def make(self, spec: SandboxSpec, marks: Marks) -> Node:
        assert self._claim is not None
        name = f"{PREFIX}{self._claim.name}-{next(self._numbers)}"
        with marks.step(Phase.CREATE, "order"):
            identity = await self._identity(name, spec.hostname)
            made = await self._ordered(name, identity)
        try:
            with marks.step(Phase.CREATE, "boot"):
                host = await self._address(made)
                login = self._login(host, name, identity)
                await ssh.answered(host, login.port, within_s=self._config.boot_timeout_s, check=lambda: None)
        except BaseException:
            await asyncio.shield(self.destroy(made))
            raise
        node = CloudNode(self, made, login)
        node.unenforced = _lacking(spec)
        return node

    async def destroy(self, node: Any) -> None:
        """Raises SubstrateFailed, DeadlineExceeded."""
        if not await self._call(lambda: self._driver.destroy_node(node)):
            raise SubstrateFailed(f"the cloud did not destroy machine {node.name!r}", hint="look at its console")

    async def close(self) -> None:
        self._driver = self._claim = None

    async def _ordered(self, name: str, identity: Identity | None) -> Any:
        """Cancelled or not, a machine that was ordered is known here, or destroyed."""
        assert self._choice is not None
        image, size, location = self._choice
        more = dict(self._config.node)
        if location is not None:
            more["location"] = location
        if identity is not None and self._config.user_data is not None:
            more[self._config.user_data] = seed.documents(identity)["user-data"]
        order = asyncio.ensure_future(
            self._call(lambda: self._driver.create_node(name=name, size=size, image=image, **more))
        )
        try:
            return await asyncio.shield(order)
        except asyncio.CancelledError:
            await asyncio.wait([order])
            if not order.cancelled() and order.exception() is None:
                await asyncio.shield(self.destroy(order.result()))
            raise

    async def _identity(self, name: str, hostname: str) -> Identity | None:
        """Where the cloud carries user data: a key by which the machine is known."""
        if self._config.user_data is None:
            return None
        assert self._claim is not None
        key = self._claim.directory / name
        public = await ssh.make_key(key, hostname)
        ours = (await in_thread(self._config.private_key.with_suffix(".pub").read_text)).strip()
        return Identity(hostname, secrets.token_hex(16), await in_thread(key.read_text), public, ours)

    def _login(self, host: str, name: str, identity: Identity | None) -> Login:
        assert self._claim is not None
        known_hosts = self._claim.directory / f"{name}.known_hosts"
        port = self._config.port
        known_hosts.write_text("" if identity is None else ssh.known_hosts_line(host, port, identity.host_key_public))
        return Login(host, port, self._config.user, self._config.private_key, known_hosts, trust_first=identity is None)

    async def _address(self, made: Any) -> str:
        """The machine's address, once it has one."""
        try:
            async with asyncio.timeout(self._config.boot_timeout_s):
                while True:
                    addresses = [*made.public_ips, *made.private_ips]
                    if addresses:
                        return str(addresses[0])
                    await asyncio.sleep(_POLL_S)
                    known = await self._call(self._driver.list_nodes)
                    made = next((node for node in known if node.id == made.id), made)
        except TimeoutError:
            raise DeadlineExceeded(f"the cloud gave machine {made.name!r} no address") from None

    def _connected(self) -> Any:
        try:
            providers = importlib.import_module("libcloud.compute.providers")
        except ImportError as error:
            hint = "pip install 'dutyfree[cloud]'"
            raise SubstrateUnavailable("Apache Libcloud is not installed", hint=hint) from error
        try:
            return providers.get_driver(self._config.provider)(**self._config.driver)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidRequest(f"Libcloud has no such provider, or it wants other arguments: {error}") from error

    def _chosen(self) -> tuple[Any, Any, Any]:
        image = _named(self._driver.list_images(), self._config.image, "image")
        size = _named(self._driver.list_sizes(), self._config.size, "size")
        wanted = self._config.location
        location = None if wanted is None else _named(self._driver.list_locations(), wanted, "location")
        return image, size, location

    async def _call(self, work: Callable[[], T]) -> T:
        """One of the driver's blocking calls, in a thread and in its turn: drivers are not made for many at once."""

        def in_turn() -> T:
            with self._turn:
                return work()

        calling = asyncio.ensure_future(asyncio.to_thread(in_turn))
        done, _ = await asyncio.wait([calling], timeout=CALL_TIMEOUT_S)
        if not done:
            raise DeadlineExceeded(f"the cloud did not answer within {CALL_TIMEOUT_S:g} s")
        try:
            return calling.result()
        except InvalidRequest:
            raise
        except Exception as error:  # a driver's errors have no common root
            raise SubstrateFailed(f"the cloud refused: {type(error).__name__}: {error!s:.300}") from error


def _named(known: Iterable[Any], wanted: str, what: str) -> Any:
    for each in known:
        if wanted in (str(each.id), each.name):
            return each
    raise InvalidRequest(f"the cloud has no {what} {wanted!r}")


def _is_left_over(name: object) -> bool:
    """Whether a machine bears the name of a dead claim of this host's."""
    if not isinstance(name, str) or not name.startswith(PREFIX):
        return False
    claim, _, number = name.removeprefix(PREFIX).rpartition("-")
    return number.isdecimal() and claims.is_dead(claim, KIND)


def _lacking(spec: SandboxSpec) -> tuple[Unenforced, ...]:
    wanted = spec.resources
    asked = {
        Capability.LIMIT_MEMORY: wanted.memory_bytes is not None,
        Capability.LIMIT_CPU: wanted.cpus is not None,
        Capability.LIMIT_PIDS: wanted.pids is not None,
        Capability.LIMIT_DISK: wanted.disk_bytes is not None,
        Capability.DENY_NETWORK: spec.network.value == "none",
    }
    return tuple(Unenforced(what, reason) for what, reason in _REASONS.items() if asked[what])
