"""Makes machines in a cloud, through Apache Libcloud."""

from __future__ import annotations

import asyncio
import functools
import importlib
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from dutyfree import claims
from dutyfree.claims import Claim
from dutyfree.errors import DeadlineExceeded, InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.failure import await_on_failure
from dutyfree.images.store import locks
from dutyfree.model import Capability, Phase, SandboxSpec, Unenforced
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.shared_task import SharedTask
from dutyfree.substrates.vm import cloud_config, seed, ssh
from dutyfree.substrates.vm.calls import Calls
from dutyfree.substrates.vm.cloud_config import CloudConfig
from dutyfree.substrates.vm.provider import Node, Provider
from dutyfree.substrates.vm.seed import Identity
from dutyfree.substrates.vm.ssh import Login
from dutyfree.threads import in_thread

PREFIX: Final = "dutyfree-"
"""Machines are named dutyfree-CLAIM-RANDOM."""
KIND: Final = "vm-cloud"
"""Of their claims: whoever finds a dead one must be able to look into its cloud before it is forgotten."""
CLOSE_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 2.0
_NOTE: Final = ".ordered"
"""The suffix of note files: the claim's directory has a note for each machine that may exist."""
_REASONS: Final = {
    Capability.LIMIT_MEMORY: "the cloud's machine size sets it",
    Capability.LIMIT_CPU: "the cloud's machine size sets it",
    Capability.LIMIT_PIDS: "a machine's kernel has a limit for the whole machine only",
    Capability.LIMIT_DISK: "the cloud's machine size sets it",
    Capability.DENY_NETWORK: "the cloud's firewall rules set it",
}


class CloudNode(Node):
    """One machine in the cloud."""

    def __init__(self, destroy: Callable[[], Awaitable[None]], login: Login) -> None:
        self._end = SharedTask(destroy)
        self.login = login

    def on_death(self, listener: Callable[[], None]) -> None:
        """Never calls `listener`: the cloud reports no deaths. The SSH connection's keep-alive detects them."""

    async def end(self) -> None:
        await self._end.wait()


class CloudProvider(Provider):
    """Makes cloud machines of one size from one image. Each is named after our claim, and destroyed at its end.

    If this process is killed, the next process on the same host destroys its machines, by the notes in the claim's
    directory. Until such a process runs, the machines keep costing money.
    """

    claims_kind = KIND

    def __init__(self, config: CloudConfig) -> None:
        self.accelerator = f"cloud:{config.provider}"
        self._config = config
        self._driver: Any = None
        self._calls: Calls | None = None
        self._claim: Claim | None = None
        self._choice: tuple[Any, Any, Any] | None = None
        self._public_key = ""

    @classmethod
    def from_file(cls, path: str | Path | None) -> Self:
        """Raises InvalidRequest."""
        return cls(cloud_config.read(path))

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.BRIDGE_NETWORK})

    async def open(self, claim: Claim) -> None:
        if self._config.user_data is not None:
            self._public_key = await in_thread(_public_key_of, self._config.private_key)
        self._calls = calls = Calls(self._config.hide)
        self._driver = driver = await calls.call(self._connect)
        self._choice = await calls.call(lambda: self._choose(driver))
        await _clean_up(calls, driver)
        self._claim = claim

    async def make(self, spec: SandboxSpec, marks: Marks) -> Node:
        claim, calls, driver = self._claim, self._calls, self._driver
        if claim is None or calls is None:
            raise InvalidRequest("the substrate is not open")
        name = f"{PREFIX}{claim.name}-{secrets.token_hex(4)}"
        note = claim.directory / f"{name}{_NOTE}"
        destroy = functools.partial(_destroy, calls, driver, note)
        with marks.step(Phase.CREATE, "order"):
            identity = await self._identity(claim, name, spec.hostname)
            order = self._order(claim, driver, note, name, identity)
            made = await calls.call(order, late=destroy)
        async with await_on_failure(destroy, made):
            with marks.step(Phase.CREATE, "boot"):
                host = await self._address(calls, driver, made)
                login = self._login(claim, host, name, identity)
                await ssh.wait_for_server(host, login.port, within_s=self._config.boot_timeout_s, check=lambda: None)
        node = CloudNode(functools.partial(destroy, made), login)
        node.unenforced = _unenforced(spec)
        return node

    async def close(self) -> None:
        """Raises SubstrateFailed, DeadlineExceeded if machines may be left: the claim's directory must stay then."""
        claim, self._claim = self._claim, None  # from now on, `order` refuses calls that still wait in the queue
        calls, driver = self._calls, self._driver
        if calls is None:
            return
        await calls.settle(within_s=CLOSE_TIMEOUT_S)
        if claim is not None:
            await _destroy_ordered(calls, driver, [claim.directory])
        self._driver = self._calls = None

    def _order(self, claim: Claim, driver: Any, note: Path, name: str, identity: Identity | None) -> Callable[[], Any]:
        assert self._choice is not None
        image, size, location = self._choice
        more = dict(self._config.node)
        if location is not None:
            more["location"] = location
        if identity is not None and self._config.user_data is not None:
            more[self._config.user_data] = seed.documents(identity)["user-data"]

        def order() -> Any:
            if self._claim is not claim:
                raise InvalidRequest("the substrate was closed")
            note.touch(mode=0o600)
            return driver.create_node(name=name, size=size, image=image, **more)

        return order

    async def _identity(self, claim: Claim, name: str, hostname: str) -> Identity | None:
        """A host key for the new machine, if the cloud passes user data to machines; else None."""
        if self._config.user_data is None:
            return None
        key = claim.directory / name
        public = await ssh.make_key(key, hostname)
        return Identity(hostname, secrets.token_hex(16), await in_thread(key.read_text), public, self._public_key)

    def _login(self, claim: Claim, host: str, name: str, identity: Identity | None) -> Login:
        known_hosts = claim.directory / f"{name}.known_hosts"
        port = self._config.port
        known_hosts.write_text("" if identity is None else ssh.known_hosts_line(host, port, identity.host_key_public))
        return Login(host, port, self._config.user, self._config.private_key, known_hosts, trust_first=identity is None)

    async def _address(self, calls: Calls, driver: Any, made: Any) -> str:
        """Wait until the machine has an address, and return it."""
        try:
            async with asyncio.timeout(self._config.boot_timeout_s):
                while True:
                    addresses = [*made.public_ips, *made.private_ips]
                    if addresses:
                        return str(addresses[0])
                    await asyncio.sleep(_POLL_S)
                    known = await calls.call(driver.list_nodes)
                    made = next((node for node in known if node.id == made.id), made)
        except TimeoutError:
            raise DeadlineExceeded(f"the cloud assigned no address to machine {made.name!r}") from None

    def _connect(self) -> Any:
        try:
            providers = importlib.import_module("libcloud.compute.providers")
        except ImportError as error:
            hint = "pip install 'dutyfree[cloud]'"
            raise SubstrateUnavailable("Apache Libcloud is not installed", hint=hint) from error
        try:
            return providers.get_driver(self._config.provider)(**self._config.driver)
        except (AttributeError, TypeError, ValueError) as error:
            reason = self._config.hide(str(error))
        raise InvalidRequest(f"Libcloud does not know the provider, or it needs other arguments: {reason:.300}")

    def _choose(self, driver: Any) -> tuple[Any, Any, Any]:
        image = _find(driver.list_images(), self._config.image, "image")
        size = _find(driver.list_sizes(), self._config.size, "size")
        wanted = self._config.location
        location = None if wanted is None else _find(driver.list_locations(), wanted, "location")
        return image, size, location


def _find(known: Iterable[Any], wanted: str, what: str) -> Any:
    for each in known:
        if wanted in (str(each.id), each.name):
            return each
    raise InvalidRequest(f"the cloud has no {what} {wanted!r}")


def _public_key_of(private_key: Path) -> str:
    path = Path(f"{private_key}.pub")
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        hint = f"ssh-keygen -y -f {private_key} > {path}"
        raise InvalidRequest(f"the public half of the key cannot be read: {error}", hint=hint) from error


async def _destroy(calls: Calls, driver: Any, note: Path, node: Any) -> None:
    """Destroy a machine, and remove its note once the machine is gone. Raises SubstrateFailed, DeadlineExceeded."""

    def work() -> None:
        failure: Exception | None = None
        try:
            destroyed = driver.destroy_node(node)
        except Exception as error:  # drivers' errors have no common base class
            destroyed, failure = False, error
        if not destroyed and any(each.id == node.id for each in driver.list_nodes()):
            hint = "look at the cloud's console"
            raise failure or SubstrateFailed(f"the cloud did not destroy machine {node.name!r}", hint=hint)
        note.unlink(missing_ok=True)

    await calls.call(work)


async def _destroy_ordered(calls: Calls, driver: Any, directories: Iterable[Path]) -> None:
    """Destroy this cloud's machines for which these claims' directories have notes. Raises as `_destroy` does."""
    notes = {note.name.removesuffix(_NOTE): note for each in directories for note in each.glob(f"*{_NOTE}")}
    for node in await calls.call(driver.list_nodes) if notes else ():
        if isinstance(node.name, str) and node.name in notes:
            await _destroy(calls, driver, notes[node.name], node)


async def _clean_up(calls: Calls, driver: Any) -> None:
    """Destroy what dead claims of this host left here, and forget the claims of which nothing is left anywhere.

    A machine's name alone proves nothing: hosts that go on from one saved moment have claims of the same names.
    """
    with ExitStack() as locked:
        directories = await in_thread(_dead, locked)
        await _destroy_ordered(calls, driver, directories)
        for directory in directories:
            if not any(directory.glob(f"*{_NOTE}")):  # otherwise: ordered elsewhere, or never made
                await in_thread(claims.forget, directory)


def _dead(locked: ExitStack) -> list[Path]:
    """The directories of dead claims, but for those that another process is cleaning up after."""
    found = []
    for directory in claims.dead(KIND):
        with suppress(OSError):
            lock = locks.attempt(directory / claims.LOCK)
            if lock is not None:
                locked.callback(lock.release)
                found.append(directory)
    return found


def _unenforced(spec: SandboxSpec) -> tuple[Unenforced, ...]:
    wanted = spec.resources
    asked = {
        Capability.LIMIT_MEMORY: wanted.memory_bytes is not None,
        Capability.LIMIT_CPU: wanted.cpus is not None,
        Capability.LIMIT_PIDS: wanted.pids is not None,
        Capability.LIMIT_DISK: wanted.disk_bytes is not None,
        Capability.DENY_NETWORK: spec.network.value == "none",
    }
    return tuple(Unenforced(what, reason) for what, reason in _REASONS.items() if asked[what])
