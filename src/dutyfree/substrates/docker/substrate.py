"""The Docker substrate: finds an engine, and makes containers that are labelled with our claim."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from dutyfree import claims, native
from dutyfree.contract import Sandbox, SpanListener
from dutyfree.errors import DeadlineExceeded, InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.store import Store
from dutyfree.model import ActionPath, Capability, Image, Isolation, Phase, SandboxSpec
from dutyfree.substrates.docker import address, plan
from dutyfree.substrates.docker.body import DockerBody, create_body
from dutyfree.substrates.docker.calls import CALL_TIMEOUT_S
from dutyfree.substrates.docker.client import Engine
from dutyfree.substrates.docker.images import EngineImages
from dutyfree.substrates.docker.snapshot import Leftovers
from dutyfree.substrates.docker.volume import GuestVolume
from dutyfree.substrates.engine import EngineSubstrate, Marks

CLAIMS = "docker"
_HIDDEN = "gVisor hides /tmp, and by default all written files, from the engine"
_WEAK_IN_GVISOR = {
    Capability.LIMIT_MEMORY: "gVisor has one memory limit for the whole sandbox: exceeding it ends the sandbox",
    Capability.LIMIT_PIDS: "gVisor does not limit the number of processes in a sandbox",
    Capability.HOST_NETWORK: "gVisor has its own network stack",
    Capability.SNAPSHOT: _HIDDEN,
    Capability.FORK: _HIDDEN,
    Capability.MOUNTS: "gVisor truncates files of the host through a read-only mount of an engine",
}


class DockerSubstrate(EngineSubstrate):
    """Containers of any engine that supports Docker's API."""

    name = "docker"
    isolation = Isolation.CONTAINER
    default_image = "debian:stable-slim"
    default_runtime: str | None = None

    def __init__(
        self,
        *,
        path: ActionPath | str = ActionPath.GUEST,
        image: Image | str | None = None,
        store: Store | str | Path | None = None,
        host: str | None = None,
        user: str = "0:0",
        runtime: str | None = None,
    ) -> None:
        """`host`: the engine's address, in the form of DOCKER_HOST. `user`: actions run as this UID:GID.

        `runtime`: one of the engine's runtimes; by default the engine's default.
        """
        super().__init__(path=path, image=image, store=store)
        self.user = user
        self.runtime = runtime or self.default_runtime
        self._host = host
        self._engine: Engine | None = None
        self._claim: claims.Claim | None = None
        self._creations: set[asyncio.Future[None]] = set()
        self.images: EngineImages
        self.leftovers: Leftovers
        self.guest: GuestVolume

    @property
    def capabilities(self) -> frozenset[Capability]:
        return plan.capabilities(self._engine.facts) - self.weak.keys() if self._engine is not None else frozenset()

    @property
    def version(self) -> str:
        if self._engine is None:
            return ""
        runtime = f", runtime {self.runtime}" if self.runtime else ""
        return f"Docker engine {self._engine.facts.version}{runtime}"

    @property
    def weak(self) -> Mapping[Capability, str]:
        """The capabilities that the engine has but its runtime does not, each with the reason."""
        return {}

    @property
    def without_mounts(self) -> str:
        why = plan.without_mounts(self._engine.facts) if self._engine is not None else ""
        return why or self.weak.get(Capability.MOUNTS, "")

    @property
    def owner(self) -> str:
        """What our containers are labelled with. Raises InvalidRequest while the substrate is not open."""
        if self._claim is None:
            raise InvalidRequest("the substrate is not open")
        return self._claim.name

    async def open(self) -> None:
        if self._engine is not None:
            return
        program = native.guest_path()
        places = [address.parse(self._host)] if self._host else address.candidates()
        engine = await Engine.find(places)
        try:
            self._check_runtime(engine)
            await asyncio.to_thread(self.store.open)
            guest = await asyncio.to_thread(program.read_bytes)
            await _sweep(engine)
            self._claim = await asyncio.to_thread(claims.claim, CLAIMS)
        except (SubstrateFailed, DeadlineExceeded) as error:
            await engine.close()
            raise SubstrateUnavailable(f"the engine does not work: {error.message}", hint=error.hint) from error
        except BaseException:
            await engine.close()
            raise
        self.images = EngineImages(engine, self.store)
        self.leftovers = Leftovers(engine)
        self.guest = GuestVolume(engine, self._claim.name, guest)
        self._engine = engine

    def named_image(self, name: str) -> Image:
        """The image of this name in our store, else an image that the engine has or can pull."""
        try:
            return super().named_image(name)
        except InvalidRequest as unknown:
            try:
                return Image(reference=name, over_host=False)
            except InvalidRequest:
                raise unknown from None

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        # Only new sandboxes are refused: a sandbox made from the snapshot before can still be reset.
        if self._engine is not None and self.leftovers.is_discarded(spec.image.reference):
            raise InvalidRequest(f"snapshot {spec.image.reference} was discarded")
        return await super().create(spec, on_span)

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> DockerBody:
        engine = self._opened()
        creation = asyncio.get_running_loop().create_future()
        self._creations.add(creation)
        try:
            body = await self._make(engine, spec, marks)
            if self._engine is not engine:
                body.channel.close()
                await asyncio.shield(body.end())
                raise SubstrateFailed("the substrate was closed during a creation")
        finally:
            self._creations.discard(creation)
            creation.set_result(None)
        return body

    async def _make(self, engine: Engine, spec: SandboxSpec, marks: Marks) -> DockerBody:
        with marks.step(Phase.CREATE, "image"):
            image = await self.images.provide(await asyncio.to_thread(self.image_for, spec))
        return await create_body(self, engine, image, spec, marks)

    async def let_go(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._creations:
            await asyncio.wait(self._creations, timeout=CALL_TIMEOUT_S)
        try:
            await self.leftovers.clear()
            await self.guest.remove()
        finally:
            await engine.close()
            if self._claim is not None:
                await asyncio.to_thread(self._claim.release)
                self._claim = None
            await asyncio.to_thread(self.store.close)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise InvalidRequest("the substrate is not open")
        return self._engine

    def _check_runtime(self, engine: Engine) -> None:
        if self.runtime is not None and self.runtime not in engine.facts.runtimes:
            known = ", ".join(sorted(engine.facts.runtimes)) or "none"
            raise SubstrateUnavailable(
                f"the engine at {engine.address.url} has no runtime {self.runtime!r}; it has {known}",
                hint='add it to "runtimes" in /etc/docker/daemon.json, and restart the engine',
            )


class GVisorDockerSubstrate(DockerSubstrate):
    """Containers of an engine with gVisor as their runtime."""

    name = "docker-gvisor"
    isolation = Isolation.USER_KERNEL
    default_runtime = "runsc"

    @property
    def weak(self) -> Mapping[Capability, str]:
        return _WEAK_IN_GVISOR


async def _sweep(engine: Engine) -> None:
    """Remove what killed processes, and substrates that were closed, left in the engine, by its labels; nothing else.

    Labels are inherited by what others make of ours. Our volume is not; and images that have a name are theirs.
    """
    for container, owner in (await engine.containers(plan.OWNER_LABEL)).items():
        if claims.is_dead(owner, CLAIMS) and plan.volume(owner) in await engine.volumes_in(container):
            await engine.remove(container)
    for volume, owner in (await engine.volumes(plan.OWNER_LABEL)).items():
        if claims.is_dead(owner, CLAIMS) and volume == plan.volume(owner):
            await engine.remove_volume(volume)
    images = await engine.nameless_images(plan.SNAPSHOT_LABEL)
    doomed = {image for image, owner in images.items() if claims.is_dead(owner, CLAIMS)}
    while doomed:
        gone = {image for image in doomed if await engine.remove_image(image)}
        if not gone:
            break  # images of other users need the rest
        doomed -= gone
    for directory in await asyncio.to_thread(claims.dead, CLAIMS):
        await asyncio.to_thread(claims.forget, directory)
