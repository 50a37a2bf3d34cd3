"""Machines that are started, saved, and waked up again, any number of them from one."""

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
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import READY, Build, arguments
from dutyfree.substrates.qemu.refusals import wrap_os_errors

BOOT_TIMEOUT_S: Final = 120.0
READY_TIMEOUT_S: Final = 60.0
_WORDS_BYTES: Final = 512
_SAVE_TIMEOUT_S: Final = 60.0
_QUIET_TURNS: Final = 20
"""Of QEMU's loop. The kernel counts what was sent in blocks, and QEMU may need several turns for one."""


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

    Raises SubstrateUnavailable, SubstrateFailed, CapacityError, DeadlineExceeded.
    """
    with wrap_os_errors("a machine got no memory"):
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
    with wrap_os_errors("a saved machine cannot be read"):
        devices = os.open(saved.devices, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return await _started(
            saved.build, memory=saved.memory, shared=False, device=device, lock_fd=lock_fd, incoming_fd=devices
        )
    finally:
        os.close(devices)


async def stop(machine: Machine, untaken_bytes: Callable[[], int] = lambda: 0) -> None:
    """Have a machine stand still, its memory included. Raises SubstrateFailed, DeadlineExceeded.

    QEMU's devices go on: what still comes to them through a stream they write into the machine's memory. Nobody may
    send anything, therefore, and of what was sent before (`untaken_bytes`) QEMU has taken all that it will.
    """
    await machine.command("stop")
    before_bytes, quiet_turns = untaken_bytes(), 0
    while before_bytes and quiet_turns < _QUIET_TURNS:
        await machine.command("query-status")
        now_bytes = untaken_bytes()
        quiet_turns = quiet_turns + 1 if now_bytes == before_bytes else 0
        before_bytes = now_bytes


async def save(machine: Machine, target: Path) -> None:
    """Write the state of the devices of a machine that stands still. Raises SubstrateFailed, DeadlineExceeded."""
    # Named after its first user; what it writes is the state of every device but the memory.
    await machine.command("xen-save-devices-state", timeout_s=_SAVE_TIMEOUT_S, filename=str(target), live=False)


async def _started(
    build: Build, *, memory: Path, shared: bool, device: Path, lock_fd: int | None, incoming_fd: int | None = None
) -> tuple[Machine, Ports]:
    with ExitStack() as ours, ExitStack() as theirs:
        pairs = []
        with wrap_os_errors("a machine got no ports"):
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
