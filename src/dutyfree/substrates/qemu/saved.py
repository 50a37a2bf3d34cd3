"""Boots machines, saves them, and restores any number of machines from one saved machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import DeadlineExceeded, SubstrateFailed
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import READY, Build, arguments

BOOT_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 60.0
_MAX_MESSAGE_BYTES: Final = 512
_SAVE_TIMEOUT_S: Final = 60.0
_QUIET_TURNS: Final = 20
"""After this many turns of QEMU's main loop without a read, QEMU reads no more. One turn is not enough: the kernel
counts sent data in blocks, and QEMU may need several turns to read one block."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A machine saved at one moment: its memory, and the state of its devices."""

    build: Build
    directory: Path

    @property
    def memory(self) -> Path:
        """The file with the machine's memory."""
        return self.directory / "memory"

    @property
    def devices(self) -> Path:
        """The file with the state of the machine's devices, written by QEMU."""
        return self.directory / "devices"


@dataclass(frozen=True, slots=True)
class Ports:
    """Our ends of a machine's two ports: the guest's stream, and the control port with its few short messages."""

    stream: socket.socket
    control: socket.socket

    def close(self) -> None:
        """Close both ports. Idempotent."""
        self.stream.close()
        self.control.close()

    async def ready(self, machine: Machine, timeout_s: float) -> None:
        """Wait until the machine sends `READY` on the control port.

        Raises SubstrateFailed, with the message that it sent instead, and DeadlineExceeded.
        """
        try:
            async with asyncio.timeout(timeout_s):
                message = await asyncio.get_running_loop().sock_recv(self.control, _MAX_MESSAGE_BYTES)
        except TimeoutError:
            console = str(await machine.command("ringbuf-read", device="console", size=2048))
            raise DeadlineExceeded(
                f"the machine was not ready within {timeout_s:g} s; its console: {console[-500:]!r}"
            ) from None
        except OSError as error:
            message = str(error).encode()
        if message != READY:
            reason = message.decode("utf-8", "replace").strip() or machine.stderr_tail or "QEMU ended"
            raise SubstrateFailed(f"the machine did not start: {reason:.500}")

    async def send(self, message: bytes) -> None:
        """Send a message on the control port. Raises SubstrateFailed."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.control, message)
        except OSError as error:
            raise SubstrateFailed(f"the machine has ended: {error}") from error


async def boot(
    build: Build, *, memory: Path, device: Path, lock_fd: int | None, timeout_s: float = BOOT_TIMEOUT_S
) -> tuple[Machine, Ports]:
    """Boot a machine until it waits for its order. Creates the file `memory`, which holds the machine's memory.

    Raises SubstrateUnavailable, SubstrateFailed, CapacityError, DeadlineExceeded; no process is left then.
    """
    with wrap_os_errors("the memory file of a machine could not be made"):
        os.close(os.open(memory, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.truncate(memory, build.memory_bytes)
    machine, ports = await _start_machine(build, memory=memory, shared=True, device=device, lock_fd=lock_fd)
    try:
        await ports.ready(machine, timeout_s)
    except BaseException:
        ports.close()
        await asyncio.shield(machine.end())
        raise
    return machine, ports


async def restore(saved: Saved, *, device: Path, lock_fd: int | None) -> tuple[Machine, Ports]:
    """Start a machine that continues where the saved one was stopped, with private memory. Raises as `boot` does."""
    with wrap_os_errors("a saved machine cannot be read"):
        devices = os.open(saved.devices, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return await _start_machine(
            saved.build, memory=saved.memory, shared=False, device=device, lock_fd=lock_fd, incoming_fd=devices
        )
    finally:
        os.close(devices)


async def stop(machine: Machine, untaken_bytes: Callable[[], int] = lambda: 0) -> None:
    """Stop a machine, so that its memory does not change any more. Raises SubstrateFailed, DeadlineExceeded.

    QEMU's devices keep running after "stop", and write data from a stream to the machine's memory. So the caller sends
    nothing more, and this waits until QEMU reads no more of what was sent before (`untaken_bytes` still unread).
    """
    await machine.command("stop")
    before_bytes, quiet_turns = untaken_bytes(), 0
    while before_bytes and quiet_turns < _QUIET_TURNS:
        await machine.command("query-status")
        now_bytes = untaken_bytes()
        quiet_turns = quiet_turns + 1 if now_bytes == before_bytes else 0
        before_bytes = now_bytes


async def save(machine: Machine, target: Path) -> None:
    """Write the device state of a stopped machine to a file. Raises SubstrateFailed, DeadlineExceeded."""
    # QEMU named the command after Xen, its first user. It writes the state of every device except the memory.
    await machine.command("xen-save-devices-state", timeout_s=_SAVE_TIMEOUT_S, filename=str(target), live=False)


async def _start_machine(
    build: Build, *, memory: Path, shared: bool, device: Path, lock_fd: int | None, incoming_fd: int | None = None
) -> tuple[Machine, Ports]:
    with ExitStack() as ours, ExitStack() as theirs:
        pairs = []
        with wrap_os_errors("the ports of a machine could not be made"):
            for _ in range(2):
                our_end, their_end = socket.socketpair()
                ours.enter_context(our_end).setblocking(False)
                pairs.append((our_end, theirs.enter_context(their_end)))
        fds = (pairs[0][1].fileno(), pairs[1][1].fileno())
        argv = arguments(build, memory=memory, shared=shared, device=device, port_fds=fds, incoming_fd=incoming_fd)
        inherited = fds if incoming_fd is None else (*fds, incoming_fd)
        machine = await Machine.start(argv, directory=memory.parent, pass_fds=inherited, lock_fd=lock_fd)
        ours.pop_all()
        return machine, Ports(stream=pairs[0][0], control=pairs[1][0])
