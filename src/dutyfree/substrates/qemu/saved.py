"""Machines that are started, saved, and waked up again, any number of them from one."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import DeadlineExceeded, SubstrateFailed
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import READY, Build, arguments

BOOT_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 60.0
_WORDS_BYTES: Final = 512
_SAVE_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Saved:
    """A machine at one moment: its memory, and the state of its devices."""

    build: Build
    directory: Path

    @property
    def memory(self) -> Path:
        """The file that is its memory."""
        return self.directory / "memory"

    @property
    def devices(self) -> Path:
        """The file that QEMU wrote about the rest."""
        return self.directory / "devices"


@dataclass(frozen=True, slots=True)
class Ports:
    """Our ends of a machine's two ports: the guest's stream, and the control port, which knows three short words."""

    stream: socket.socket
    control: socket.socket

    def close(self) -> None:
        """Both. Idempotent."""
        self.stream.close()
        self.control.close()

    async def ready(self, machine: Machine, timeout_s: float) -> None:
        """Wait until the machine says that it is ready for what comes next.

        Raises SubstrateFailed, with what it said instead, and DeadlineExceeded.
        """
        try:
            async with asyncio.timeout(timeout_s):
                said = await asyncio.get_running_loop().sock_recv(self.control, _WORDS_BYTES)
        except TimeoutError:
            console = str(await machine.command("ringbuf-read", device="console", size=2048))
            raise DeadlineExceeded(
                f"the machine was not ready within {timeout_s:g} s; its console: {console[-500:]!r}"
            ) from None
        except OSError as error:
            said = str(error).encode()
        if said != READY:
            words = said.decode("utf-8", "replace").strip() or machine.last_words or "QEMU ended"
            raise SubstrateFailed(f"the machine did not start: {words:.500}")

    async def tell(self, word: bytes) -> None:
        """Say something on the control port. Raises SubstrateFailed."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.control, word)
        except OSError as error:
            raise SubstrateFailed(f"the machine has ended: {error}") from error


async def boot(
    build: Build, *, memory: Path, device: Path, lock_fd: int | None, timeout_s: float = BOOT_TIMEOUT_S
) -> tuple[Machine, Ports]:
    """Start a machine; it waits for its order. Its memory is the file, which is made. Nothing runs if this raises.

    Raises SubstrateUnavailable, SubstrateFailed, DeadlineExceeded.
    """
    os.close(os.open(memory, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.truncate(memory, build.memory_bytes)
    machine, ports = await _started(build, memory=memory, shared=True, device=device, lock_fd=lock_fd)
    try:
        await ports.ready(machine, timeout_s)
    except BaseException:
        ports.close()
        await asyncio.shield(machine.end())
        raise
    return machine, ports


async def restore(saved: Saved, *, device: Path, lock_fd: int | None) -> tuple[Machine, Ports]:
    """Wake up a saved machine, which goes on where it was, with memory of its own. Raises as `boot` does."""
    devices = os.open(saved.devices, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return await _started(
            saved.build, memory=saved.memory, shared=False, device=device, lock_fd=lock_fd, incoming_fd=devices
        )
    finally:
        os.close(devices)


async def save(machine: Machine, target: Path) -> None:
    """Write the state of a machine's devices; it stands still then. Raises SubstrateFailed, DeadlineExceeded."""
    await machine.command("stop")
    # Named after its first user; what it writes is the state of every device but the memory.
    await machine.command("xen-save-devices-state", timeout_s=_SAVE_TIMEOUT_S, filename=str(target), live=False)


async def _started(
    build: Build, *, memory: Path, shared: bool, device: Path, lock_fd: int | None, incoming_fd: int | None = None
) -> tuple[Machine, Ports]:
    stream, their_stream = socket.socketpair()
    control, their_control = socket.socketpair()
    ports = Ports(stream, control)
    try:
        fds = (their_stream.fileno(), their_control.fileno())
        argv = arguments(build, memory=memory, shared=shared, device=device, port_fds=fds, incoming_fd=incoming_fd)
        inherited = fds if incoming_fd is None else (*fds, incoming_fd)
        machine = await Machine.start(argv, directory=memory.parent, pass_fds=inherited, lock_fd=lock_fd)
    except BaseException:
        ports.close()
        raise
    finally:
        their_stream.close()
        their_control.close()
    stream.setblocking(False)
    control.setblocking(False)
    return machine, ports
