"""The body of a microVM sandbox: one machine whose guest has completed the handshake."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dutyfree.errors import SandboxGone, SubstrateFailed, Unsupported
from dutyfree.guest.environment import DEFAULT_ENVIRONMENT
from dutyfree.model import Image, Metrics, SandboxSpec, Usage
from dutyfree.substrates.engine import Body
from dutyfree.substrates.metering import measure
from dutyfree.substrates.process_memory import tree_usage
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import AGAIN, clock
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
_DRAIN_READS: Final = 64


@dataclass(slots=True)
class RunningVM:
    """A machine that runs, but does not serve a sandbox yet."""

    machine: Machine
    ports: Ports
    build: Build
    device: Path
    memory_fd: int
    """The file with the machine's initial memory."""
    shared: bool
    """Whether the machine writes to that file; otherwise it has private copies of the pages that it changed."""
    first_message: bytes = AGAIN
    """What init or the guest waits for on the control port: the order with the bounds, or `AGAIN` in a clone."""
    release_source: Callable[[], Awaitable[None]] | None = None
    """Gives back the saved machine that this one was restored from."""

    async def end(self) -> None:
        """Kill the machine and release all that it holds. Idempotent; raises SubstrateFailed."""
        self.ports.close()
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1
        await asyncio.shield(self.machine.end())
        release, self.release_source = self.release_source, None
        if release is not None:
            await asyncio.shield(release())


class MicroVMBody(Body):
    """Owns a machine. Made by `start_guest`."""

    clock_stops = True

    def __init__(
        self, substrate: MicroVMSubstrate, vm: RunningVM, channel: Channel, spec: SandboxSpec, image: Image
    ) -> None:
        self.channel = channel
        self.env = {**DEFAULT_ENVIRONMENT, **image.env, **spec.env}
        self.cwd = image.cwd
        self.pid = vm.machine.pid
        self.image = image
        self.resources = spec.resources
        self.device: Path | None = None
        """The device that this body releases when it ends; None after a restore from a snapshot, which owns one."""
        self._vm = vm
        self._substrate = substrate
        self._lock = asyncio.Lock()

    @classmethod
    async def start_guest(
        cls, substrate: MicroVMSubstrate, vm: RunningVM, spec: SandboxSpec, image: Image
    ) -> MicroVMBody:
        """Send the machine's first message, and complete the handshake with its guest, which gets a new identity.

        Raises SubstrateFailed, DeadlineExceeded, LinkFailed, GuestMisbehaved; the machine is killed then.
        """
        channel: Channel | None = None
        try:
            with _discard_stream(vm.ports):
                await vm.ports.send(vm.first_message)
                await vm.ports.ready(vm.machine, READY_TIMEOUT_S)
            if not _drain(vm.ports):
                raise SubstrateFailed("the machine ended before the handshake with its guest")
            hello = identity(spec.hostname)
            channel = Channel.over_socket(vm.ports.stream, handshake_timeout_s=READY_TIMEOUT_S, hello=hello)
            await channel.handshake()
        except BaseException:
            if channel is not None:
                channel.close()
            await asyncio.shield(vm.end())
            raise
        return cls(substrate, vm, channel, spec, image)

    async def connect(self) -> Channel:
        raise Unsupported(
            "a microVM can be reached only through the stream of its guest",
            hint="use the guest path, or the substrate 'vm', which has SSH",
        )

    def usage(self) -> Usage | None:
        return tree_usage(self._vm.machine.pid)

    def metrics(self) -> Metrics:
        """The machine's process: a machine keeps the memory that its guest freed, and has no network device."""
        seen = measure(self.pid, (), counts_processes=False, own_network=False)
        usage = self.usage()
        memory_bytes = None if usage is None else usage.memory_bytes
        return replace(seen, memory_bytes=memory_bytes, network_received_bytes=0, network_sent_bytes=0)

    async def pause(self) -> None:
        await self._vm.machine.command("stop")

    async def resume(self) -> None:
        await self._vm.machine.command("cont")
        await self._vm.ports.send(clock(time.time_ns()))  # its clock stood still

    async def end(self) -> None:
        await self._vm.end()
        device, self.device = self.device, None
        if device is not None:
            await asyncio.shield(self._substrate.give_back(device))

    async def snapshot(self) -> Snapshot:
        async with self._lock:
            if not self._vm.machine.alive:
                raise SandboxGone("the machine has ended")
            self.channel.standing_still = True
            try:
                return await self._substrate.freeze(self, self._vm)
            finally:
                self.channel.standing_still = False


def identity(hostname: str) -> HostHello:
    """The identity of a new machine: a unique machine id and random seed, and a unique name unless the spec has one."""
    own = f"{hostname}-{secrets.token_hex(4)}" if hostname == SandboxSpec().hostname else hostname
    return HostHello(VERSION, own.encode(), secrets.token_hex(16).encode(), os.urandom(_SEED_BYTES), time.time_ns())


@contextmanager
def _discard_stream(ports: Ports) -> Iterator[None]:
    """Discard what arrives on the stream: a restored machine still sends data that was meant for its former host."""
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
    """Read and discard the data that is there, at most `_DRAIN_READS` times; False at the end of the stream."""
    try:
        for _ in range(_DRAIN_READS):
            if not ports.stream.recv(_DRAIN_BYTES):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True
