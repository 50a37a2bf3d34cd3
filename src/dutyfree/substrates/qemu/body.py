"""A sandbox's body: one machine, whose guest was greeted."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dutyfree.errors import SandboxGone, SubstrateFailed, Unsupported
from dutyfree.guest.environment import DEFAULT_ENVIRONMENT
from dutyfree.model import Image, SandboxSpec
from dutyfree.substrates.engine import Body
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import AGAIN
from dutyfree.substrates.qemu.saved import READY_TIMEOUT_S, Ports
from dutyfree.wire.channel import Channel
from dutyfree.wire.messages import VERSION, HostHello

if TYPE_CHECKING:
    from pathlib import Path

    from dutyfree.contract import Snapshot
    from dutyfree.substrates.qemu.plan import Build
    from dutyfree.substrates.qemu.substrate import MicroVMSubstrate

_SEED_BYTES: Final = 64
_DRAIN_BYTES: Final = 64 * 1024
_DRAIN_TURNS: Final = 64


@dataclass(slots=True)
class Awake:
    """A machine that runs and is nobody's sandbox yet."""

    machine: Machine
    ports: Ports
    build: Build
    device: Path
    memory_fd: int
    """The file that its memory began as."""
    shared: bool
    """Whether it writes to that file."""
    word: bytes = AGAIN
    """What it waits for: its order, or that it is another one now."""
    let_go: Callable[[], Awaitable[None]] | None = None
    """Gives back what it was waked up from."""

    async def end(self) -> None:
        """Kill it, and let go of everything. Idempotent; raises SubstrateFailed."""
        self.ports.close()
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1
        await asyncio.shield(self.machine.end())
        let_go, self.let_go = self.let_go, None
        if let_go is not None:
            await asyncio.shield(let_go())


class MicroVMBody(Body):
    """Takes over a machine. Made by `greeted`."""

    def __init__(
        self, substrate: MicroVMSubstrate, awake: Awake, channel: Channel, spec: SandboxSpec, image: Image
    ) -> None:
        self.channel = channel
        self.env = {**DEFAULT_ENVIRONMENT, **image.env, **spec.env}
        self.cwd = image.cwd
        self.pid = awake.machine.pid
        self.image = image
        self.resources = spec.resources
        self.device: Path | None = None
        """The device that it holds, unless it was waked up from a snapshot, which has one."""
        self._awake = awake
        self._substrate = substrate
        self._turn = asyncio.Lock()

    @classmethod
    async def greeted(cls, substrate: MicroVMSubstrate, awake: Awake, spec: SandboxSpec, image: Image) -> MicroVMBody:
        """Say to the machine what it waits for, and greet its guest with an identity of its own.

        The machine is ended if this raises: SubstrateFailed, DeadlineExceeded, LinkFailed, GuestMisbehaved.
        """
        channel: Channel | None = None
        try:
            with _emptied(awake.ports):
                await awake.ports.tell(awake.word)
                await awake.ports.ready(awake.machine, READY_TIMEOUT_S)
            if not _drain(awake.ports):
                raise SubstrateFailed("the machine ended before its guest could be greeted")
            hello = identity(spec.hostname)
            channel = Channel.over_socket(awake.ports.stream, handshake_timeout_s=READY_TIMEOUT_S, hello=hello)
            await channel.handshake()
        except BaseException:
            if channel is not None:
                channel.close()
            await asyncio.shield(awake.end())
            raise
        return cls(substrate, awake, channel, spec, image)

    async def connect(self) -> Channel:
        raise Unsupported(
            "a microVM has no way in but the stream of its guest",
            hint="use the guest path, or the substrate 'vm', which has SSH",
        )

    async def end(self) -> None:
        await self._awake.end()
        device, self.device = self.device, None
        if device is not None:
            await asyncio.shield(self._substrate.give_back(device))

    async def snapshot(self) -> Snapshot:
        async with self._turn:
            if not self._awake.machine.alive:
                raise SandboxGone("the machine has ended")
            self.channel.standing_still = True
            try:
                return await self._substrate.freeze(self, self._awake)
            finally:
                self.channel.standing_still = False


def identity(hostname: str) -> HostHello:
    """Who a machine is: nobody else has its machine id and random numbers; nor, unless it was chosen, its name."""
    own = f"{hostname}-{secrets.token_hex(4)}" if hostname == SandboxSpec().hostname else hostname
    return HostHello(VERSION, own.encode(), secrets.token_hex(16).encode(), os.urandom(_SEED_BYTES), time.time_ns())


@contextmanager
def _emptied(ports: Ports) -> Iterator[None]:
    """Keep the stream empty: what a saved machine still had on its way to its former host is for nobody."""
    loop, stream = asyncio.get_running_loop(), ports.stream.fileno()

    def drain() -> None:
        if not _drain(ports):
            loop.remove_reader(stream)

    loop.add_reader(stream, drain)
    try:
        yield
    finally:
        loop.remove_reader(stream)


def _drain(ports: Ports) -> bool:
    """Read what is there, but not without end, and forget it; False at the end of the stream."""
    try:
        for _ in range(_DRAIN_TURNS):
            if not ports.stream.recv(_DRAIN_BYTES):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True
