"""One container, with our guest as its first process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dutyfree.contract import Snapshot
from dutyfree.errors import GuestMisbehaved, InfraFailed, LinkFailed, SandboxGone, SubstrateFailed
from dutyfree.model import Capability, Image, Phase, SandboxSpec
from dutyfree.substrates.docker import counters, plan
from dutyfree.substrates.docker.calls import CALL_S
from dutyfree.substrates.docker.client import Engine
from dutyfree.substrates.docker.demultiplexer import Demultiplexer
from dutyfree.substrates.docker.images import EngineImage
from dutyfree.substrates.docker.snapshot import DockerSnapshot
from dutyfree.substrates.engine import Body, Marks
from dutyfree.substrates.engine.shared_lock import SharedLock
from dutyfree.wire.channel import Channel

if TYPE_CHECKING:
    from dutyfree.substrates.docker.substrate import DockerSubstrate

_LOOKS: Final = 10
_LOOK_S: Final = 0.05


class DockerBody(Body):
    """A container that runs; made by `born`."""

    def __init__(
        self,
        substrate: DockerSubstrate,
        engine: Engine,
        container: str,
        channel: Channel,
        image: Image,
        spec: SandboxSpec,
    ) -> None:
        """`image`: what it was made from, with all that belongs to it."""
        self._substrate = substrate
        self._engine = engine
        self._image = image
        self._lock = SharedLock()
        """An engine refuses execs while it takes a snapshot, and the other way round."""
        self.container = container
        self.channel = channel
        self.env = {**image.env, **spec.env}
        self.cwd = image.cwd
        self.unenforced = plan.unenforced(spec, engine.facts, substrate.weak)

    async def connect(self) -> Channel:
        try:
            async with self._lock.shared():
                stream = await self._engine.execute(self.container, plan.another_guest(self._substrate.user))
                return await greeted(*talk(stream))
        except (SubstrateFailed, GuestMisbehaved) as error:
            # Engines tell what kept an exec from starting in its own output, where a guest's greeting is expected.
            if not await self._lives_on():
                raise SandboxGone("the container is gone") from error
            raise SubstrateFailed(f"no guest could be started for the action: {error.message}") from error

    async def _lives_on(self) -> bool:
        """Whether the container runs; that it does not, an engine notices a little later than we."""
        for _ in range(_LOOKS):
            if not self.channel.alive or not await self._engine.runs(self.container):
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def snapshot(self) -> Snapshot:
        changes = plan.snapshot_changes(self._substrate.owner)
        async with self._lock.exclusive():
            committed = await self._engine.commit(self.container, changes)
            self._substrate.leftovers.took(committed)
        return DockerSnapshot(self._substrate, committed, self._image)

    async def end(self) -> None:
        await self._engine.ended(self.container)
        with suppress(InfraFailed):  # the sandbox is gone; a discarded image is tried again, at the latest on closing
            await self._substrate.leftovers.tidy()

    async def look(self) -> None:
        """Find its process and its counters, where the engine runs on this machine."""
        if not self._engine.facts.local:
            return
        state = (await self._engine.inspect(self.container)).get("State")
        pid = state.get("Pid") if isinstance(state, dict) else None
        if isinstance(pid, int) and pid > 1:
            self.limits = counters.watch(self.container, pid)
            self.pid = pid if self.limits is not None else None


async def born(
    substrate: DockerSubstrate, engine: Engine, image: EngineImage, spec: SandboxSpec, marks: Marks
) -> DockerBody:
    """A container for `spec`, greeted. Nothing is left of one that could not be made. Raises as `create` does."""
    with marks.step(Phase.CREATE, "inject"):
        await substrate.guest.fill(image.id)
    with marks.step(Phase.CREATE, "create"):
        document = plan.container(
            image.id,
            spec,
            engine.facts,
            owner=substrate.owner,
            user=substrate.user,
            runtime=substrate.runtime,
            pids=Capability.LIMIT_PIDS not in substrate.weak,
        )
        container = await engine.create(document)
    channel: Channel | None = None
    try:
        with marks.step(Phase.CREATE, "attach"):
            stream = await engine.attach(container)
            channel, beside = talk(stream)
        with marks.step(Phase.CREATE, "start"):
            await _start(substrate, engine, container)
        with marks.step(Phase.READY, "handshake"):
            whole = Image(reference=image.id, over_host=False, env=image.env, cwd=image.cwd)
            body = DockerBody(substrate, engine, container, channel, whole, spec)
            await asyncio.gather(greeted(channel, beside), body.look())
    except BaseException as error:
        if channel is not None:
            channel.close()
        try:
            await asyncio.shield(engine.remove(container))
        except InfraFailed as failure:
            error.add_note(f"and then the container could not be removed: {failure}")
        raise
    return body


async def _start(substrate: DockerSubstrate, engine: Engine, container: str) -> None:
    try:
        await engine.start(container)
    except SubstrateFailed as error:
        if plan.GUEST in error.message:  # there is no such program
            substrate.guest.forget()
        raise


def talk(stream: socket.socket) -> tuple[Channel, Demultiplexer]:
    """A channel over a container's streams, and what takes them apart."""
    beside = Demultiplexer()
    fd = stream.detach()
    return Channel(fd, fd, unwrap=beside.feed, handshake_timeout_s=CALL_S), beside


async def greeted(channel: Channel, beside: Demultiplexer) -> Channel:
    """The channel, once its guest has answered. Raises as `Channel.handshake` does, and closes it then."""
    try:
        await channel.handshake()
    except LinkFailed as error:
        raise SubstrateFailed(f"the guest did not come up: {beside.last_words or error.message}") from error
    except BaseException:
        channel.close()
        raise
    return channel
