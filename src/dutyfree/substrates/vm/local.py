"""Makes machines with QEMU on this host."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dutyfree import claims
from dutyfree.claims import Claim
from dutyfree.errors import InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.failure import await_on_failure
from dutyfree.images.commands import CommandFailed, run_command
from dutyfree.images.store import locks
from dutyfree.model import Capability, Network, Phase, SandboxSpec
from dutyfree.removal import remove_tree
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.vm import acceleration, seed, ssh
from dutyfree.substrates.vm.base import Base, own_base, users_base
from dutyfree.substrates.vm.plan import (
    EMULATED,
    MIB,
    Drives,
    Hardware,
    Memory,
    forwarded_port,
    hardware_for,
    qemu_argv,
    unenforced_by,
)
from dutyfree.substrates.vm.provider import Node, Provider
from dutyfree.substrates.vm.saved import Boot, Saved, SavedMachines, restore
from dutyfree.substrates.vm.seed import Identity
from dutyfree.substrates.vm.ssh import Login
from dutyfree.threads import in_thread

KIND: Final = "vm"
"""Of the claims of local machines."""
BOOT_TIMEOUT_S: Final = 300.0
SAVED_DISK_BYTES: Final = MIB
"""Free disk space of a saved machine. Restoring sets the requested size, so that one saved machine serves all sizes."""
_TOOL_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
_TOOL_TIMEOUT_S: Final = 30.0


class LocalNode(Node):
    """One QEMU process and its directory."""

    def __init__(self, machine: Machine, login: Login, directory: Path) -> None:
        self.machine = machine
        self.login = login
        self.pid = machine.pid
        self.directory = directory

    def on_death(self, listener: Callable[[], None]) -> None:
        self.machine.on_death(listener)

    async def end(self) -> None:
        await self.machine.end()
        await in_thread(remove_tree, self.directory)


class LocalProvider(Provider):
    """Makes QEMU q35 machines with firmware, a disk, a seed disk and a network card, from our base or the user's."""

    claims_kind = KIND

    def __init__(
        self,
        directory: Path,
        *,
        base: Path | None = None,
        packages: tuple[str, ...] = (),
        boot: Boot = Boot.COLD,
        accelerator: str | None = None,
    ) -> None:
        """`directory`: for bases, saved machines, and the disks of live machines.

        `accelerator`: `kvm` or `tcg`. None chooses `kvm` where it works, but always `tcg` for a base of the user.
        """
        self.accelerator = accelerator or EMULATED
        self._detect_accelerator = accelerator is None
        self._directory = directory
        self._users_base = base
        self._packages = packages
        self._boot = boot
        self._numbers = itertools.count(1)
        self._claim: Claim | None = None
        self._base: Base | None = None
        self._saved: SavedMachines | None = None
        if base is not None and boot is Boot.RESTORE:
            raise InvalidRequest("boot='restore' works only with Dutyfree's own base", hint="leave out base=")

    @property
    def capabilities(self) -> frozenset[Capability]:
        networks = {Capability.DENY_NETWORK, Capability.BRIDGE_NETWORK}
        # The free space is known only for our own base.
        disk = {Capability.LIMIT_DISK} if self._users_base is None else set()
        return frozenset({*networks, *disk, Capability.HOST_PROCESSES})

    async def open(self, claim: Claim) -> None:
        for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("qemu-img", "qemu-utils")):
            if shutil.which(program) is None:
                raise SubstrateUnavailable(
                    f"there is no program {program!r}", hint=f"Debian: apt-get install {package}"
                )
        try:
            output = await run_command(["qemu-system-x86_64", "--version"], timeout_s=20.0, env={"PATH": os.defpath})
        except CommandFailed as error:
            raise SubstrateUnavailable(f"QEMU does not print its version: {error}") from error
        self.version = output.partition("\n")[0]
        self._claim = claim
        await in_thread(self._prepare, claim)
        if self._users_base is not None:
            self._base = await users_base(self._users_base)
        else:
            self._base = await own_base(self._directory, self._packages)
        if self._detect_accelerator and self._base.kernel is not None:
            self.accelerator = await acceleration.detect(self._base.kernel, self._directory)
        if self._boot is Boot.RESTORE:
            self._saved = SavedMachines(self._directory, self._base, self.accelerator, self.version, self._boot_cold)

    def _prepare(self, claim: Claim) -> None:
        live = self._directory / "live"
        live.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in claims.directories(live):
            if claims.is_dead(directory.name, KIND):
                claims.forget(directory)
        for directory in claims.dead(KIND):
            claims.forget(directory)
        for making in self._directory.glob("*.making"):
            lock = locks.attempt(making.with_suffix(".lock"))
            if lock is not None:  # the process that was making it is dead
                remove_tree(making)
                lock.release(remove=True)
        (live / claim.name).mkdir(mode=0o700)

    async def make(self, spec: SandboxSpec, marks: Marks) -> Node:
        assert self._claim is not None
        hardware = hardware_for(spec.resources)
        if self._saved is None:
            node = await self._boot_cold(hardware, spec.hostname, spec.network, marks, None)
        else:
            node = await self._from_saved(self._saved, hardware, spec, marks)
        node.unenforced = unenforced_by(spec, hardware, knows_disk=self._users_base is None)
        return node

    async def _boot_cold(
        self, hardware: Hardware, hostname: str, network: Network, marks: Marks, memory: Memory | None
    ) -> LocalNode:
        """Boot a new machine."""
        assert self._base is not None
        directory = self._new_directory()
        async with await_on_failure(in_thread, remove_tree, directory):
            with marks.step(Phase.CREATE, "disk"):
                identity, key = await self._identity(directory, hostname)
                await in_thread(seed.write, directory / "seed", identity)
                drives = Drives(directory / "disk.qcow2", directory / "seed")
                await overlay(drives.disk, self._base.disk, self._base.format, self._disk_bytes(hardware))
            with marks.step(Phase.CREATE, "boot"):
                argv = qemu_argv(
                    hardware, drives, accelerator=self.accelerator, network=network, memory=memory,
                    machine_id=identity.machine_id, kernel=self._base.kernel,
                )  # fmt: skip
                machine = await self._start(argv, directory)
                async with await_on_failure(machine.end):
                    login = await login_to(machine, directory, key, identity.host_key_public)
                    check = _still_running(machine)
                    await ssh.wait_for_server(login.host, login.port, within_s=BOOT_TIMEOUT_S, check=check)
        return LocalNode(machine, login, directory)

    async def _from_saved(
        self, machines: SavedMachines, hardware: Hardware, spec: SandboxSpec, marks: Marks
    ) -> LocalNode:
        wanted = replace(hardware, disk_bytes=SAVED_DISK_BYTES)
        with marks.step(Phase.CREATE, "saved"):
            saved = await machines.get(wanted)
        try:
            return await self._restore(saved, hardware, spec, marks)
        except (SubstrateFailed, FileNotFoundError):
            if saved.state.exists():
                raise
        # Another process removed the saved machine to make room for its own.
        with marks.step(Phase.CREATE, "saved"):
            saved = await machines.get(wanted)
        try:
            return await self._restore(saved, hardware, spec, marks)
        except FileNotFoundError as error:
            raise SubstrateFailed(f"a saved machine is gone: {error}") from error

    async def _restore(self, saved: Saved, hardware: Hardware, spec: SandboxSpec, marks: Marks) -> LocalNode:
        """Restore a saved machine, with a new disk over the saved disk."""
        assert self._base is not None
        directory = self._new_directory()
        async with await_on_failure(in_thread, remove_tree, directory):
            with marks.step(Phase.CREATE, "disk"):
                key = directory / "key"
                await in_thread(_copy_key, saved.key, key)  # the saved machine may be removed while this one runs
                host_key, machine_id = saved.host_key_public, saved.machine_id
                drives = Drives(directory / "disk.qcow2", saved.seed)
                await overlay(drives.disk, saved.disk, "qcow2", None)
            with marks.step(Phase.CREATE, "restore"):
                state_fd = os.open(saved.state, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    memory = Memory(saved.memory, shared=False)
                    argv = qemu_argv(
                        hardware, drives, accelerator=self.accelerator, network=spec.network, memory=memory,
                        machine_id=machine_id, kernel=self._base.kernel, incoming=True,
                    )  # fmt: skip
                    machine = await self._start(argv, directory, state_fd)
                finally:
                    os.close(state_fd)
                async with await_on_failure(machine.end):
                    await restore(machine, state_fd)
                    await machine.command("block_resize", device="disk", size=self._disk_bytes(hardware))
                    login = await login_to(machine, directory, key, host_key)
        node = LocalNode(machine, login, directory)
        node.has_guest = node.is_copy = True
        return node

    def _disk_bytes(self, hardware: Hardware) -> int:
        assert self._base is not None
        return self._base.size_bytes + self._base.slack_bytes + hardware.disk_bytes

    async def _start(self, argv: list[str], directory: Path, *inherited: int) -> Machine:
        assert self._claim is not None
        return await Machine.start(argv, directory=directory, pass_fds=inherited, lock_fd=self._claim.lock_fd)

    def _new_directory(self) -> Path:
        assert self._claim is not None
        directory = self._directory / "live" / self._claim.name / str(next(self._numbers))
        directory.mkdir(mode=0o700)
        return directory

    async def _identity(self, directory: Path, hostname: str) -> tuple[Identity, Path]:
        key, host_key = directory / "key", directory / "host_key"
        mine, theirs = await asyncio.gather(ssh.make_key(key, "dutyfree"), ssh.make_key(host_key, hostname))
        machine_id = secrets.token_hex(16)
        (directory / "machine-id").write_text(machine_id)
        return Identity(hostname, machine_id, host_key.read_text(), theirs, mine), key

    async def close(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            await in_thread(remove_tree, self._directory / "live" / claim.name)


async def overlay(disk: Path, over: Path, form: str, size_bytes: int | None) -> None:
    """Make an empty qcow2 disk over another disk; without `size_bytes`, of the same size."""
    size = [] if size_bytes is None else [str(size_bytes)]
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(over), "-F", form, str(disk), *size]
    try:
        await run_command(command, timeout_s=_TOOL_TIMEOUT_S, env=_TOOL_ENVIRONMENT)
    except CommandFailed as error:
        raise SubstrateFailed(f"the machine's disk could not be made: {error}") from error


async def login_to(machine: Machine, directory: Path, key: Path, host_key: str) -> Login:
    """The login for a machine: the port that QEMU forwards, and the host key that the machine must show there."""
    usernet = await machine.command("human-monitor-command", command_line="info usernet")
    port = forwarded_port(usernet if isinstance(usernet, str) else "")
    if port is None:
        raise SubstrateFailed("QEMU does not forward a port to the machine")
    known_hosts = directory / "known_hosts"
    known_hosts.write_text(ssh.known_hosts_line("127.0.0.1", port, host_key))
    return Login("127.0.0.1", port, "root", key, known_hosts)


def _still_running(machine: Machine) -> Callable[[], None]:
    def check() -> None:
        if not machine.alive:
            raise SubstrateFailed(f"the machine ended while it booted: {machine.stderr_tail or 'QEMU wrote no error'}")

    return check


def _copy_key(source: Path, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(source.read_bytes())
