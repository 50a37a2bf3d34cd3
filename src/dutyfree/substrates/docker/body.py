"""The body of a Docker sandbox: one container with our guest as its first process."""

from __future__ import annotations

import asyncio
import posixpath
import socket
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

from dutyfree.contract import Snapshot
from dutyfree.errors import GuestMisbehaved, InfraFailed, InvalidRequest, LinkFailed, SandboxGone, SubstrateFailed
from dutyfree.model import Capability, Image, Metrics, Network, Phase, SandboxSpec, Usage
from dutyfree.substrates.docker import counters, plan
from dutyfree.substrates.docker.calls import CALL_TIMEOUT_S
from dutyfree.substrates.docker.client import Engine
from dutyfree.substrates.docker.demultiplexer import Demultiplexer
from dutyfree.substrates.docker.images import EngineImage
from dutyfree.substrates.docker.snapshot import DockerSnapshot
from dutyfree.substrates.engine import Body, Marks
from dutyfree.substrates.engine.shared_lock import SharedLock
from dutyfree.substrates.hierarchies import GroupCounters
from dutyfree.substrates.metering import measure
from dutyfree.substrates.sources import find_sources
from dutyfree.wire.channel import Channel

if TYPE_CHECKING:
    from dutyfree.substrates.docker.substrate import DockerSubstrate

_CHECKS: Final = 10
_CHECK_PERIOD_S: Final = 0.05


class DockerBody(Body):
    """A running container. Made by `create_body`."""

    def __init__(
        self,
        substrate: DockerSubstrate,
        engine: Engine,
        container: str,
        channel: Channel,
        image: Image,
        spec: SandboxSpec,
    ) -> None:
        """`image`: the image that the container was made from, with its environment and working directory."""
        self._substrate = substrate
        self._engine = engine
        self._image = image
        self._lock = SharedLock()
        """Keeps execs and snapshots apart: an engine refuses one during the other."""
        self._held = AsyncExitStack()
        """The lock while the container is paused."""
        self._is_paused = False
        self._own_network = spec.network is not Network.HOST
        self._counters: GroupCounters | None = None
        self.container = container
        self.channel = channel
        self.env = {**image.env, **spec.env}
        self.cwd = image.cwd
        self.unenforced = plan.unenforced(spec, engine.facts, substrate.weak)

    async def connect(self) -> Channel:
        try:
            async with self._lock.shared():
                stream = await self._engine.execute(self.container, plan.another_guest(self._substrate.user))
                return await wait_for_guest(*open_channel(stream))
        except (SubstrateFailed, GuestMisbehaved) as error:
            # If an exec cannot start, engines write the reason to its output, where we expect the guest's handshake.
            if not await self._still_runs():
                raise SandboxGone("the container is gone") from error
            raise SubstrateFailed(f"the action's guest could not be started: {error.message}") from error

    async def _still_runs(self) -> bool:
        """Whether the container still runs. Asked repeatedly, because an engine notices an exit later than we do."""
        for _ in range(_CHECKS):
            if not self.channel.alive or not await self._engine.runs(self.container):
                return False
            await asyncio.sleep(_CHECK_PERIOD_S)
        return True

    async def snapshot(self) -> Snapshot:
        changes = plan.snapshot_changes(self._substrate.owner)
        async with self._lock.exclusive():
            committed = await self._engine.commit(self.container, changes)
            self._substrate.leftovers.add(committed)
        return DockerSnapshot(self._substrate, committed, self._image)

    def metrics(self) -> Metrics:
        if self._counters is None:  # the engine is on another machine
            return Metrics(time.time())
        groups = [posixpath.dirname(file) for file in (self._counters.memory, self._counters.pids) if file]
        # Where a kernel of its own runs the processes, those of this machine are not the sandbox's.
        counts_processes = Capability.LIMIT_PIDS not in self._substrate.weak
        return measure(self.pid, groups, counts_processes=counts_processes, own_network=self._own_network)

    async def pause(self) -> None:
        await self._held.enter_async_context(self._lock.exclusive())
        self._is_paused = True
        await self._engine.pause(self.container)

    async def resume(self) -> None:
        try:
            await self._engine.unpause(self.container)
        finally:
            self._is_paused = False
            await self._held.aclose()

    async def end(self) -> None:
        if self._is_paused:
            with suppress(InfraFailed):  # it may not be paused, or be gone; a guest that is paused cannot exit
                await self.resume()
        await self._engine.wait_for_exit(self.container)
        with suppress(InfraFailed):  # the container is gone; images are removed later, at the latest by `close`
            await self._substrate.leftovers.tidy()

    async def find_process(self) -> None:
        """Find the container's process and counters, if the engine runs on this machine."""
        if not self._engine.facts.local:
            return
        state = (await self._engine.inspect(self.container)).get("State")
        pid = state.get("Pid") if isinstance(state, dict) else None
        if isinstance(pid, int) and pid > 1:
            self.limits = self._counters = counters.watch(self.container, pid)
            self.pid = pid if self.limits is not None else None

    def usage(self) -> Usage | None:
        memory_bytes = None if self._counters is None else self._counters.memory_bytes()
        return None if memory_bytes is None else Usage(memory_bytes)


async def create_body(
    substrate: DockerSubstrate, engine: Engine, image: EngineImage, spec: SandboxSpec, marks: Marks
) -> DockerBody:
    """Make a container for `spec`, and complete the handshake with its guest.

    Raises as `create` does; the container is removed then.
    """
    with marks.step(Phase.CREATE, "inject"):
        await substrate.guest.fill(image.id)
    sources = await find_sources(spec.mounts, substrate.store.root) if spec.mounts else ()
    with marks.step(Phase.CREATE, "create"):
        document = plan.container(
            image.id,
            spec,
            engine.facts,
            owner=substrate.owner,
            user=substrate.user,
            runtime=substrate.runtime,
            pids=Capability.LIMIT_PIDS not in substrate.weak,
            sources=sources,
        )
        container = await engine.create(document)
    channel: Channel | None = None
    try:
        with marks.step(Phase.CREATE, "attach"):
            stream = await engine.attach(container)
            channel, streams = open_channel(stream)
        with marks.step(Phase.CREATE, "start"):
            await _start(substrate, engine, container, spec)
        with marks.step(Phase.READY, "handshake"):
            whole = Image(reference=image.id, over_host=False, env=image.env, cwd=image.cwd)
            body = DockerBody(substrate, engine, container, channel, whole, spec)
            await asyncio.gather(wait_for_guest(channel, streams), body.find_process())
    except BaseException as error:
        if channel is not None:
            channel.close()
        try:
            await asyncio.shield(engine.remove(container))
        except InfraFailed as failure:
            error.add_note(f"and then the container could not be removed: {failure}")
        raise
    return body


async def _start(substrate: DockerSubstrate, engine: Engine, container: str, spec: SandboxSpec) -> None:
    try:
        await engine.start(container)
    except SubstrateFailed as error:
        if plan.GUEST in error.message:  # the guest's program is missing, so the volume was removed
            substrate.guest.forget()
        for mount in spec.mounts:
            # The runtime's own words: there is no code for it. A file in place of a directory is the caller's mistake.
            if f'"{mount.target}"' in error.message and "not a directory" in error.message:
                raise InvalidRequest(
                    f"nothing can be mounted at {mount.target!r}: a file is in place of a directory, or vice versa"
                ) from error
        raise


def open_channel(stream: socket.socket) -> tuple[Channel, Demultiplexer]:
    """A channel over a container's attached stream, and the demultiplexer of that stream."""
    streams = Demultiplexer()
    fd = stream.detach()
    return Channel(fd, fd, unwrap=streams.feed, handshake_timeout_s=CALL_TIMEOUT_S), streams


async def wait_for_guest(channel: Channel, streams: Demultiplexer) -> Channel:
    """Wait for the guest's handshake, and return the channel. Raises as `Channel.handshake` does; closes it then."""
    try:
        await channel.handshake()
    except LinkFailed as error:
        raise SubstrateFailed(f"the guest did not start: {streams.stderr_tail or error.message}") from error
    except BaseException:
        channel.close()
        raise
    return channel
