"""A client of Docker's API, for the calls that we need."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dutyfree.errors import DeadlineExceeded, SandboxGone, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates.docker import facts
from dutyfree.substrates.docker.address import Address
from dutyfree.substrates.docker.calls import Calls
from dutyfree.substrates.docker.failures import EngineRefused, failure
from dutyfree.substrates.docker.hijack import connect
from dutyfree.threads import in_thread

if TYPE_CHECKING:
    import aiodocker

PULL_TIMEOUT_S: Final = 1800.0
GREETING_TIMEOUT_S: Final = 10.0
EXIT_TIMEOUT_S: Final = 3.0
CONNECTIONS: Final = 256
_BLOCK_BYTES: Final = 1024 * 1024
_IN_PROGRESS: Final = "already in progress"
_PAUSED: Final = "is paused"
_NO_NAME: Final = "<none>:<none>"
_UNRECOGNIZED: Final = "unrecognized image ID"


class Engine(Calls):
    """The client of one engine."""

    def __init__(self, address: Address, docker: aiodocker.Docker) -> None:
        super().__init__(address, docker)
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self.facts: facts.Facts

    @classmethod
    async def find(cls, places: list[Address]) -> Engine:
        """Connect to the first address that answers. Raises SubstrateUnavailable, with a hint, if none does."""
        problems: list[SubstrateUnavailable] = []
        for address in places:
            try:
                await _check_listening(address)
                return await cls._open(address)
            except SubstrateUnavailable as error:
                problems.append(error)
        # Prefer an error from an address where something listens: it is more helpful than "no engine answers".
        raise next((each for each in problems if not isinstance(each, _NotListening)), problems[0])

    @classmethod
    async def _open(cls, address: Address) -> Engine:
        docker, close = _client(address)
        engine = cls(address, docker)
        engine._closing.append(close)
        try:
            version = await engine._ask("report its version", docker.version(), GREETING_TIMEOUT_S)
            facts.api_version(version)
            info = await engine._ask("report its facts", docker.system.info(), GREETING_TIMEOUT_S)
            networks = await engine._ask("list its networks", docker.networks.list(), GREETING_TIMEOUT_S)
            engine.facts = facts.read(address, version, info, networks)
        except SubstrateUnavailable:
            await close()
            raise
        except (SubstrateFailed, DeadlineExceeded, TypeError, AttributeError) as error:
            await close()
            hint = "set DOCKER_HOST to the engine's socket"
            raise SubstrateUnavailable(f"{address.url} is not a Docker engine: {error}", hint=hint) from error
        except BaseException:
            await close()
            raise
        return engine

    async def close(self) -> None:
        """Wait for clean-ups that still run, and close the connections. Idempotent."""
        await self.settle()
        while self._closing:
            await self._closing.pop()()

    # Containers

    async def create(self, document: dict[str, Any]) -> str:
        """Make a container without starting it. Returns its id. If this call is cancelled, the container is removed."""

        async def make() -> str:
            made = await self._ask("create a container", self._docker.containers.create(document))
            return str(made.id)

        return await self._make_or_undo(make(), self.remove)

    async def put_archive(self, container: str, directory: str, archive: bytes) -> None:
        """Unpack a tar into a directory of the container."""
        handle = self._docker.containers.container(container)
        await self._ask("take a file", handle.put_archive(directory, archive))  # type: ignore[no-untyped-call]

    async def start(self, container: str) -> None:
        """Start a container."""
        await self._ask("start a container", self._docker.containers.container(container).start())

    async def pause(self, container: str) -> None:
        """Freeze a container's processes."""
        await self._ask("pause a container", self._docker.containers.container(container).pause())

    async def unpause(self, container: str) -> None:
        """Let a paused container's processes go on."""
        await self._ask("resume a container", self._docker.containers.container(container).unpause())

    async def inspect(self, container: str) -> dict[str, Any]:
        """The engine's description of a container."""
        return await self._ask("show a container", self._docker.containers.container(container).show())

    async def remove(self, container: str) -> None:
        """Kill and remove a container and its anonymous volumes, and wait until it is gone. It need not exist."""
        handle = self._docker.containers.container(container)
        try:
            await self._raw("remove a container", handle.delete(force=True, v=True))
        except EngineRefused as error:
            if error.status == 404:
                return
            # The engine removes a container that exits (AutoRemove), and may have begun.
            if error.status != 409 or _IN_PROGRESS not in error.message:
                raise failure("remove a container", error.message) from error
            await self._wait_until_removed(container)

    async def wait_for_exit(self, container: str) -> None:
        """Wait until a container whose guest exits is gone; remove it if that takes longer than 3 s.

        It is not killed at once: if a gVisor container is killed while it exits, the engine can hang for 30 s.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await self._wait_until_removed(container)
                return
        await self.remove(container)

    async def _wait_until_removed(self, container: str) -> None:
        handle = self._docker.containers.container(container)
        try:
            await self._raw("remove a container", handle.wait(condition="removed"))
        except EngineRefused as error:
            if error.status != 404:
                raise failure("remove a container", error.message) from error

    async def containers(self, label: str) -> dict[str, str]:
        """All containers with the label: id to the label's value."""
        listing = self._docker.containers.list(all=True, filters=json.dumps({"label": [label]}))
        return {each.id: str(each["Labels"][label]) for each in await self._ask("list containers", listing)}

    async def volumes_in(self, container: str) -> set[str]:
        """The names of the volumes in a container; empty if the container does not exist."""
        try:
            known = await self._raw("show a container", self._docker.containers.container(container).show())
        except EngineRefused as error:
            if error.status == 404:
                return set()
            raise failure("show a container", error.message) from error
        return {str(mount["Name"]) for mount in known.get("Mounts") or () if mount.get("Name")}

    async def attach(self, container: str) -> socket.socket:
        """The container's standard streams. Call this before `start`, or the first output may be lost."""
        path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        try:
            return await self._hijack("attach to a container", path)
        except EngineRefused as error:
            raise failure("attach to a container", error.message) from error

    async def execute(self, container: str, document: dict[str, Any]) -> socket.socket:
        """Run a program in a container. Returns its standard streams. Raises SandboxGone if the container has ended."""
        try:
            return await self._execute(container, document)
        except EngineRefused as error:
            if error.status in (404, 409) and _PAUSED not in error.message:
                raise SandboxGone(f"the container is gone: {error.message[:200]}") from error
            raise failure("run another guest", error.message) from error

    async def _execute(self, container: str, document: dict[str, Any]) -> socket.socket:
        what = "run another guest"
        # Not aiodocker's own method, which gives no access to the raw connection.
        call = self._docker._query_json(f"containers/{container}/exec", "POST", data=document)
        made = await self._raw(what, call)
        return await self._hijack(what, f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})

    async def runs(self, container: str) -> bool:
        """Whether the container exists and runs."""
        try:
            known = await self._raw("show a container", self._docker.containers.container(container).show())
        except EngineRefused:
            return False
        return bool((known.get("State") or {}).get("Running"))

    # Volumes

    async def create_volume(self, name: str, labels: dict[str, str]) -> None:
        """Make a volume of this name, if there is none."""
        document = {"Name": name, "Labels": labels}
        await self._ask("create a volume", self._docker.volumes.create(document))  # type: ignore[no-untyped-call]

    async def remove_volume(self, name: str) -> None:
        """Remove a volume, if it exists and no container uses it."""
        try:
            await self._raw("remove a volume", self._docker._query_json(f"volumes/{name}", "DELETE"))
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise failure("remove a volume", error.message) from error

    async def volumes(self, label: str) -> dict[str, str]:
        """All volumes with the label: name to the label's value."""
        listed = await self._ask("list volumes", self._docker.volumes.list())  # type: ignore[no-untyped-call]
        labelled = [(str(each["Name"]), each.get("Labels") or {}) for each in listed.get("Volumes") or ()]
        return {name: str(labels[label]) for name, labels in labelled if label in labels}

    # Images

    async def image(self, reference: str) -> dict[str, Any] | None:
        """The engine's description of an image; None if the engine does not have it."""
        try:
            return await self._raw("show an image", self._docker.images.inspect(reference))
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise failure(f"show the image {reference!r}", error.message) from error

    async def pull(self, reference: str) -> None:
        """Pull an image from its registry."""
        await self._ask(f"pull the image {reference!r}", self._docker.images.pull(reference), PULL_TIMEOUT_S)

    async def load(self, archive: Path) -> None:
        """Load images from an archive that `export_image` wrote."""
        await self._ask("load an image", self._docker.images.import_image(_blocks(archive)), PULL_TIMEOUT_S)

    async def save(self, reference: str, target: Path) -> None:
        """Write an image as an archive that skopeo reads."""

        async def fetch() -> None:
            with target.open("wb") as file:
                async with self._docker.images.export_image(reference) as content:
                    async for block in content.iter_chunked(_BLOCK_BYTES):
                        await in_thread(file.write, block)

        await self._ask("save an image", fetch(), PULL_TIMEOUT_S)

    async def commit(self, container: str, changes: list[str]) -> str:
        """Make an image of a container's files; the container is paused meanwhile. Returns the image's id.

        If this call is cancelled, the image is removed.
        """
        handle = self._docker.containers.container(container)

        async def make() -> str:
            made = await self._ask("commit a container", handle.commit(changes=changes, pause=True), PULL_TIMEOUT_S)
            return str(made["Id"])

        return await self._make_or_undo(make(), self.remove_image)

    async def remove_image(self, reference: str) -> bool:
        """Remove an image. Returns False while containers or other images need it, True if it is gone."""
        try:
            await self._raw("remove an image", self._docker.images.delete(reference, noprune=True))
        except EngineRefused as error:
            # While an image is being removed, an engine may answer "unrecognized image ID" instead of status 404.
            is_gone = error.status == 404 or _UNRECOGNIZED in error.message
            if not is_gone and error.status != 409:
                raise failure("remove an image", error.message) from error
            return is_gone
        return True

    async def nameless_images(self, label: str) -> dict[str, str]:
        """All images with the label and without a name: id to the label's value."""
        listed = await self._ask("list images", self._docker.images.list(all=True))
        nameless = [each for each in listed if set(each.get("RepoTags") or ()) <= {_NO_NAME}]
        labelled = [(str(each["Id"]), each.get("Labels") or {}) for each in nameless]
        return {identity: str(labels[label]) for identity, labels in labelled if label in labels}


class _NotListening(SubstrateUnavailable):
    """No process listens at the address."""


async def _check_listening(address: Address) -> None:
    """Raise SubstrateUnavailable unless a connection to the address succeeds."""
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            (await connect(address)).close()
    except PermissionError as error:
        hint = "join the group of its socket (`docker`), or run as root"
        raise SubstrateUnavailable(f"no permission to use the engine at {address.url}", hint=hint) from error
    except (OSError, TimeoutError) as error:
        hint = "start dockerd or podman, or set DOCKER_HOST to the engine's address"
        raise _NotListening(f"no engine answers at {address.url}: {error}", hint=hint) from error


def _client(address: Address) -> tuple[aiodocker.Docker, Callable[[], Awaitable[None]]]:
    try:
        import aiodocker
        import aiohttp
    except ImportError as error:
        raise SubstrateUnavailable(f"{error.name} is not installed", hint="pip install 'dutyfree[docker]'") from error

    # A new connection for each call: a kept connection breaks when the engine restarts.
    connector: aiohttp.BaseConnector
    if address.path:
        connector = aiohttp.UnixConnector(address.path, limit=CONNECTIONS, force_close=True)
    else:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, force_close=True)
    url = f"unix://{address.authority}" if address.path else f"http://{address.authority}"
    docker = aiodocker.Docker(url, connector=connector)

    async def close() -> None:
        await docker.close()
        await connector.close()

    return docker, close


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while block := await in_thread(file.read, _BLOCK_BYTES):
            yield block
