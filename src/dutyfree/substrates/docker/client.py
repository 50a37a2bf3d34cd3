"""The engine's API, as far as it is used here."""

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

PULL_S: Final = 1800.0
GREETING_S: Final = 10.0
EXIT_S: Final = 3.0
CONNECTIONS: Final = 256
_BLOCK_BYTES: Final = 1024 * 1024
_IN_PROGRESS: Final = "already in progress"
_PAUSED: Final = "is paused"
_NO_NAME: Final = "<none>:<none>"
_UNRECOGNIZED: Final = "unrecognized image ID"


class Engine(Calls):
    """One engine."""

    def __init__(self, address: Address, docker: aiodocker.Docker) -> None:
        super().__init__(address, docker)
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self.facts: facts.Facts

    @classmethod
    async def find(cls, places: list[Address]) -> Engine:
        """The first that answers. Raises SubstrateUnavailable, with a hint, where none does."""
        problems: list[SubstrateUnavailable] = []
        for address in places:
            try:
                await _greet(address)
                return await cls._open(address)
            except SubstrateUnavailable as error:
                problems.append(error)
        # Of several places, the first in which there is something says most.
        raise next((each for each in problems if not isinstance(each, _Absent)), problems[0])

    @classmethod
    async def _open(cls, address: Address) -> Engine:
        docker, close = _client(address)
        engine = cls(address, docker)
        engine._closing.append(close)
        try:
            version = await engine._ask("tell its version", docker.version(), GREETING_S)
            facts.api_version(version)
            info = await engine._ask("tell about itself", docker.system.info(), GREETING_S)
            networks = await engine._ask("list its networks", docker.networks.list(), GREETING_S)
            engine.facts = facts.read(address, version, info, networks)
        except SubstrateUnavailable:
            await close()
            raise
        except (SubstrateFailed, DeadlineExceeded, TypeError, AttributeError) as error:
            await close()
            hint = "let DOCKER_HOST name the engine's socket"
            raise SubstrateUnavailable(f"{address.url} is not a Docker engine: {error}", hint=hint) from error
        except BaseException:
            await close()
            raise
        return engine

    async def close(self) -> None:
        """Wait for what is still being tidied up, and hang up. Idempotent."""
        await self.settle()
        while self._closing:
            await self._closing.pop()()

    # Containers

    async def create(self, document: dict[str, Any]) -> str:
        """A new container, not started; its id. If this is cancelled, there is none."""

        async def make() -> str:
            made = await self._ask("create a container", self._docker.containers.create(document))
            return str(made.id)

        return await self._undone(make(), self.remove)

    async def put_archive(self, container: str, directory: str, archive: bytes) -> None:
        """Unpack a tar in a directory of the container's."""
        handle = self._docker.containers.container(container)
        await self._ask("take a file", handle.put_archive(directory, archive))  # type: ignore[no-untyped-call]

    async def start(self, container: str) -> None:
        """Start it."""
        await self._ask("start a container", self._docker.containers.container(container).start())

    async def inspect(self, container: str) -> dict[str, Any]:
        """What the engine knows of it."""
        return await self._ask("show a container", self._docker.containers.container(container).show())

    async def remove(self, container: str) -> None:
        """Kill and remove a container, and its own volumes; return when it has gone. One that is not there is fine."""
        handle = self._docker.containers.container(container)
        try:
            await self._raw("remove a container", handle.delete(force=True, v=True))
        except EngineRefused as error:
            if error.status == 404:
                return
            # Containers that end are removed by the engine itself: it may have begun.
            if error.status != 409 or _IN_PROGRESS not in error.message:
                raise failure("remove a container", error.message) from error
            await self._removed(container)

    async def ended(self, container: str) -> None:
        """A container whose guest was told to exit: wait until it has gone, and remove it if it has not soon.

        Killed in the moment in which it exits, a container of gVisor's can keep the engine waiting for half a minute.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await self._removed(container)
                return
        await self.remove(container)

    async def _removed(self, container: str) -> None:
        handle = self._docker.containers.container(container)
        try:
            await self._raw("remove a container", handle.wait(condition="removed"))
        except EngineRefused as error:
            if error.status != 404:
                raise failure("remove a container", error.message) from error

    async def containers(self, label: str) -> dict[str, str]:
        """All that bear the label: id to its value."""
        listing = self._docker.containers.list(all=True, filters=json.dumps({"label": [label]}))
        return {each.id: str(each["Labels"][label]) for each in await self._ask("list containers", listing)}

    async def volumes_in(self, container: str) -> set[str]:
        """The names of the volumes that are mounted into a container; none if it is not there."""
        try:
            known = await self._raw("show a container", self._docker.containers.container(container).show())
        except EngineRefused as error:
            if error.status == 404:
                return set()
            raise failure("show a container", error.message) from error
        return {str(mount["Name"]) for mount in known.get("Mounts") or () if mount.get("Name")}

    async def attach(self, container: str) -> socket.socket:
        """The container's standard streams; to be asked for before it starts, so that nothing is missed."""
        path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        try:
            return await self._hijack("attach to a container", path)
        except EngineRefused as error:
            raise failure("attach to a container", error.message) from error

    async def execute(self, container: str, document: dict[str, Any]) -> socket.socket:
        """Run something in a container; its standard streams. Raises SandboxGone for a container that does not run."""
        try:
            return await self._execute(container, document)
        except EngineRefused as error:
            if error.status in (404, 409) and _PAUSED not in error.message:
                raise SandboxGone(f"the container is gone: {error.message[:200]}") from error
            raise failure("run another guest", error.message) from error

    async def _execute(self, container: str, document: dict[str, Any]) -> socket.socket:
        what = "run another guest"
        # aiodocker's own call for this has no way to the bare connection.
        call = self._docker._query_json(f"containers/{container}/exec", "POST", data=document)
        made = await self._raw(what, call)
        return await self._hijack(what, f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})

    async def runs(self, container: str) -> bool:
        """Whether the container is there and runs."""
        try:
            known = await self._raw("show a container", self._docker.containers.container(container).show())
        except EngineRefused:
            return False
        return bool((known.get("State") or {}).get("Running"))

    # Volumes

    async def create_volume(self, name: str, labels: dict[str, str]) -> None:
        """Make a volume of this name; one that is there already is fine."""
        document = {"Name": name, "Labels": labels}
        await self._ask("create a volume", self._docker.volumes.create(document))  # type: ignore[no-untyped-call]

    async def remove_volume(self, name: str) -> None:
        """Remove it. One that is not there, or that a container still uses, is fine."""
        try:
            await self._raw("remove a volume", self._docker._query_json(f"volumes/{name}", "DELETE"))
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise failure("remove a volume", error.message) from error

    async def volumes(self, label: str) -> dict[str, str]:
        """All that bear the label: name to its value."""
        listed = await self._ask("list volumes", self._docker.volumes.list())  # type: ignore[no-untyped-call]
        labelled = [(str(each["Name"]), each.get("Labels") or {}) for each in listed.get("Volumes") or ()]
        return {name: str(labels[label]) for name, labels in labelled if label in labels}

    # Images

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What the engine knows of an image; None if it does not have it."""
        try:
            return await self._raw("show an image", self._docker.images.inspect(reference))
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise failure(f"show the image {reference!r}", error.message) from error

    async def pull(self, reference: str) -> None:
        """Get an image from its registry."""
        await self._ask(f"pull the image {reference!r}", self._docker.images.pull(reference), PULL_S)

    async def load(self, archive: Path) -> None:
        """Load images from what `export_image` wrote."""
        await self._ask("load an image", self._docker.images.import_image(_blocks(archive)), PULL_S)

    async def save(self, reference: str, target: Path) -> None:
        """Write an image as an archive that skopeo reads."""

        async def fetch() -> None:
            with target.open("wb") as file:
                async with self._docker.images.export_image(reference) as content:
                    async for block in content.iter_chunked(_BLOCK_BYTES):
                        await in_thread(file.write, block)

        await self._ask("save an image", fetch(), PULL_S)

    async def commit(self, container: str, changes: list[str]) -> str:
        """An image of a container's files, during whose making it stands still; its id. Cancelled, there is none."""
        handle = self._docker.containers.container(container)

        async def make() -> str:
            made = await self._ask("commit a container", handle.commit(changes=changes, pause=True), PULL_S)
            return str(made["Id"])

        return await self._undone(make(), self.remove_image)

    async def remove_image(self, reference: str) -> bool:
        """Remove this one image; False while containers or other images need it. One that is not there is fine."""
        try:
            await self._raw("remove an image", self._docker.images.delete(reference, noprune=True))
        except EngineRefused as error:
            # An image that is going at this moment is in no list any more, and in none yet.
            is_gone = error.status == 404 or _UNRECOGNIZED in error.message
            if not is_gone and error.status != 409:
                raise failure("remove an image", error.message) from error
            return is_gone
        return True

    async def nameless_images(self, label: str) -> dict[str, str]:
        """All that bear the label, and no name: id to the label's value."""
        listed = await self._ask("list images", self._docker.images.list(all=True))
        nameless = [each for each in listed if set(each.get("RepoTags") or ()) <= {_NO_NAME}]
        labelled = [(str(each["Id"]), each.get("Labels") or {}) for each in nameless]
        return {identity: str(labels[label]) for identity, labels in labelled if label in labels}


class _Absent(SubstrateUnavailable):
    """Nobody listens there."""


async def _greet(address: Address) -> None:
    """Raise SubstrateUnavailable unless something listens there that lets us in."""
    try:
        async with asyncio.timeout(GREETING_S):
            (await connect(address)).close()
    except PermissionError as error:
        hint = "join the group of its socket (`docker`), or run as root"
        raise SubstrateUnavailable(f"no permission to use the engine at {address.url}", hint=hint) from error
    except (OSError, TimeoutError) as error:
        hint = "start dockerd or podman, or let DOCKER_HOST say where it listens"
        raise _Absent(f"no engine answers at {address.url}: {error}", hint=hint) from error


def _client(address: Address) -> tuple[aiodocker.Docker, Callable[[], Awaitable[None]]]:
    try:
        import aiodocker
        import aiohttp
    except ImportError as error:
        raise SubstrateUnavailable(f"{error.name} is not installed", hint="pip install 'dutyfree[docker]'") from error

    # A connection for each call: one that was kept may have gone with a restarted engine.
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
