"""An engine without walls: programs that carry a guest's bytes, so that what engines share is judged without one."""

from __future__ import annotations

from dutyfree import native
from dutyfree.guest import DEFAULT_ENVIRONMENT
from dutyfree.model import Capability, Isolation, Network, Phase, SandboxSpec, Unenforced
from dutyfree.substrates.engine import Body, EngineSubstrate, Marks
from dutyfree.substrates.engine.programs import channel_through
from dutyfree.wire.channel import Channel

LIMITS = (Capability.LIMIT_MEMORY, Capability.LIMIT_CPU, Capability.LIMIT_PIDS, Capability.LIMIT_DISK)


class BareBody(Body):
    """A guest behind a pipe; each connection is another one."""

    def __init__(self, channel: Channel, spec: SandboxSpec) -> None:
        self.channel = channel
        self.env = {**DEFAULT_ENVIRONMENT, **spec.env}
        self.cwd = "/tmp"
        denied = (Capability.DENY_NETWORK,) if spec.network is Network.NONE else ()
        asked = (spec.resources.memory_bytes, spec.resources.cpus, spec.resources.pids, spec.resources.disk_bytes)
        limits = [limit for limit, value in zip(LIMITS, asked, strict=True) if value is not None]
        self.unenforced = tuple(Unenforced(what, "there are no walls") for what in (*limits, *denied))

    async def connect(self) -> Channel:
        return await channel_through([str(native.guest_path()), "--stdio", "--leave"])

    async def end(self) -> None:
        self.channel.close()


class BareEngine(EngineSubstrate):
    """`path` is what is judged."""

    name = "bare"
    isolation = Isolation.NONE

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            {Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.KILL_TREE, Capability.HOST_NETWORK}
        )

    async def open(self) -> None:
        native.guest_path()

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> Body:
        with marks.step(Phase.CREATE, "spawn"):
            channel = await channel_through([str(native.guest_path()), "--stdio"])
        with marks.step(Phase.READY, "handshake"):
            return BareBody(channel, spec)

    async def let_go(self) -> None:
        pass
