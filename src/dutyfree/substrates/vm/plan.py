"""The plan of a machine: its hardware, and QEMU's command line. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability, Network, Resources, SandboxSpec, Unenforced

MIB: Final = 1024 * 1024
LEAST_MEMORY_BYTES: Final = 256 * MIB
"""A complete Debian does not boot with less."""
DEFAULT_MEMORY_BYTES: Final = 2048 * MIB
DEFAULT_DISK_BYTES: Final = 8192 * MIB
MAX_CPUS: Final = 64
EMULATED: Final = "tcg"
ACCELERATORS: Final = ("kvm", EMULATED)

_CONFINED: Final = "on,obsolete=deny,elevateprivileges=deny,resourcecontrol=deny"
_CONSOLE: Final = "console=ttyS0 quiet systemd.show_status=0 net.ifnames=0"
_EMULATED_CLOCK: Final = "nokaslr clocksource=hpet tsc=reliable tsc_early_khz=1000000 lpj=4000000"
"""The kernel skips calibration of the time stamp counter, which sometimes hangs in emulation. The frequency given
instead is not the real one, so the clock source is the HPET."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware of a machine: whole CPUs and whole MiB."""

    memory_bytes: int
    cpus: int
    disk_bytes: int
    """Free space on the disk, in addition to the base's content."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is booted directly, without a boot loader on the disk."""

    image: Path
    initrd: Path


@dataclass(frozen=True, slots=True)
class Memory:
    """A file as the machine's memory. With `shared`, the machine writes to it, so that it can be saved; else never."""

    file: Path
    shared: bool


@dataclass(frozen=True, slots=True)
class Drives:
    """The disk (a qcow2 over the base), and the directory that the machine sees as its seed disk."""

    disk: Path
    seed: Path


def hardware_for(resources: Resources) -> Hardware:
    """The smallest machine that has the requested resources."""
    memory_bytes = max(resources.memory_bytes or DEFAULT_MEMORY_BYTES, LEAST_MEMORY_BYTES)
    cpus = math.ceil(resources.cpus or 1)
    if cpus > MAX_CPUS:
        raise InvalidRequest(f"a machine has at most {MAX_CPUS} CPUs, not {cpus}")
    disk_bytes = resources.disk_bytes or DEFAULT_DISK_BYTES
    return Hardware(_whole(memory_bytes), cpus, _whole(disk_bytes))


def unenforced_by(spec: SandboxSpec, hardware: Hardware, *, knows_disk: bool) -> tuple[Unenforced, ...]:
    """The bounds of the spec that are not enforced exactly, or whose violations are not reported."""
    wanted = spec.resources
    memory = f"the machine has {hardware.memory_bytes // MIB} MiB; out-of-memory kills inside it are not reported"
    return tuple(
        Unenforced(what, reason)
        for asked, what, reason in (
            (wanted.memory_bytes, Capability.LIMIT_MEMORY, memory),
            (wanted.cpus, Capability.LIMIT_CPU, f"machines have whole CPUs; this one has {hardware.cpus}"),
            (wanted.pids, Capability.LIMIT_PIDS, "a machine's kernel has a limit for the whole machine only"),
            (None if knows_disk else wanted.disk_bytes, Capability.LIMIT_DISK, "the base's free space is unknown"),
        )
        if asked is not None
    )


def qemu_argv(
    hardware: Hardware,
    drives: Drives,
    *,
    accelerator: str,
    network: Network,
    machine_id: str,
    kernel: Kernel | None,
    memory: Memory | None = None,
    incoming: bool = False,
) -> list[str]:
    """QEMU's command line. QEMU forwards a free port on the host's loopback to the machine's port 22.

    To restore a saved machine (`incoming`), pass the same hardware as when it was saved.
    """
    size = f"{hardware.memory_bytes // MIB}M"
    emulated = accelerator == EMULATED
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    # QEMU saves its state through another program (`cat`), so a machine that is being saved may spawn; it runs no code
    # of a sandbox yet. In all other machines, a guest that breaks into QEMU cannot start a program on the host.
    saves = memory is not None and memory.shared
    argv += ["-sandbox", f"{_CONFINED},spawn={'allow' if saves else 'deny'}"]
    argv += ["-accel", "tcg,thread=multi" if emulated else accelerator, "-cpu", "max" if emulated else "host"]
    argv += ["-M", "q35" if memory is None else "q35,memory-backend=ram", "-m", size, "-smp", str(hardware.cpus)]
    argv += ["-uuid", _uuid(machine_id), "-serial", "null"]
    if memory is not None:
        shared = "on" if memory.shared else "off"
        argv += ["-object", f"memory-backend-file,id=ram,size={size},mem-path={_comma(memory.file)},share={shared}"]
    if kernel is not None:
        clock = f" {_EMULATED_CLOCK}" if emulated else ""
        line = f"{_CONSOLE}{clock} dutyfree.machine_id={machine_id}"
        argv += ["-kernel", str(kernel.image), "-initrd", str(kernel.initrd), "-append", line]
    argv += _drive("disk", f"file={_comma(drives.disk)},format=qcow2,cache=unsafe,discard=unmap")
    argv += _drive("seed", f"driver=vvfat,dir={_comma(drives.seed)},label=CIDATA,read-only=on")
    alone = "on" if network is Network.NONE else "off"
    argv += ["-netdev", f"user,id=net,ipv6=off,restrict={alone},hostfwd=tcp:127.0.0.1:0-:22"]
    argv += ["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]
    return [*argv, "-incoming", "defer"] if incoming else argv


def forwarded_port(usernet: str) -> int | None:
    """The host's port that QEMU forwards, from the output of its `info usernet`."""
    for line in usernet.splitlines():
        match line.split():
            case ["TCP[HOST_FORWARD]", _, "127.0.0.1", port, *_] if port.isdecimal():
                return int(port)
    return None


def _drive(name: str, options: str) -> list[str]:
    return ["-drive", f"{options},if=none,id={name}", "-device", f"virtio-blk-pci,drive={name}"]


def _whole(size_bytes: int) -> int:
    return math.ceil(size_bytes / MIB) * MIB


def _comma(path: Path) -> str:
    """The path with commas doubled: a single comma ends a value in QEMU's arguments."""
    return str(path).replace(",", ",,")


def _uuid(machine_id: str) -> str:
    return "-".join((machine_id[:8], machine_id[8:12], machine_id[12:16], machine_id[16:20], machine_id[20:]))
