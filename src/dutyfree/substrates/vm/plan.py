"""What a machine is made of, and the command line that makes QEMU be it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Capability, Network, Resources, SandboxSpec, Unenforced

MIB: Final = 1024 * 1024
LEAST_MEMORY_BYTES: Final = 256 * MIB
"""Less than this a whole Debian does not boot in."""
DEFAULT_MEMORY_BYTES: Final = 2048 * MIB
DEFAULT_DISK_BYTES: Final = 8192 * MIB
MAX_CPUS: Final = 64
EMULATED: Final = "tcg"
ACCELERATORS: Final = ("kvm", EMULATED)

_CONFINED: Final = "on,obsolete=deny,elevateprivileges=deny,resourcecontrol=deny"
_CONSOLE: Final = "console=ttyS0 quiet systemd.show_status=0 net.ifnames=0"
_EMULATED_CLOCK: Final = "nokaslr clocksource=hpet tsc=reliable tsc_early_khz=1000000 lpj=4000000"
"""Calibrating against emulated time hangs now and then. What is said of the time stamp counter instead is not true, so
that nothing may tell the time by it."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Whole amounts, as machines have them."""

    memory_bytes: int
    cpus: int
    disk_bytes: int
    """Room for what is written, beside what the base holds."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is booted directly, without a boot loader on the disk."""

    image: Path
    initrd: Path


@dataclass(frozen=True, slots=True)
class Memory:
    """A file in the place of anonymous memory: `shared` to be saved, otherwise written to by nobody."""

    file: Path
    shared: bool


@dataclass(frozen=True, slots=True)
class Drives:
    """The disk, a qcow2 over the base, and the directory that is shown as the seed's disk."""

    disk: Path
    seed: Path


def hardware_for(resources: Resources) -> Hardware:
    """The least machine that has what was asked for."""
    memory_bytes = max(resources.memory_bytes or DEFAULT_MEMORY_BYTES, LEAST_MEMORY_BYTES)
    cpus = math.ceil(resources.cpus or 1)
    if cpus > MAX_CPUS:
        raise InvalidRequest(f"a machine has at most {MAX_CPUS} CPUs, not {cpus}")
    disk_bytes = resources.disk_bytes or DEFAULT_DISK_BYTES
    return Hardware(_whole(memory_bytes), cpus, _whole(disk_bytes))


def unenforced_by(spec: SandboxSpec, hardware: Hardware, *, knows_disk: bool) -> tuple[Unenforced, ...]:
    """The bounds of the spec that are not kept to the letter, or not told of when they are met."""
    wanted = spec.resources
    memory = f"the machine has {hardware.memory_bytes // MIB} MiB; whom its kernel kills for want of more is not told"
    return tuple(
        Unenforced(what, reason)
        for asked, what, reason in (
            (wanted.memory_bytes, Capability.LIMIT_MEMORY, memory),
            (wanted.cpus, Capability.LIMIT_CPU, f"machines have whole CPUs; this one has {hardware.cpus}"),
            (wanted.pids, Capability.LIMIT_PIDS, "a machine's kernel counts processes for the machine alone"),
            (None if knows_disk else wanted.disk_bytes, Capability.LIMIT_DISK, "nobody knows how full the base is"),
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
    """QEMU's command line for a machine whose port 22 is forwarded from a free port of this machine's loopback.

    The same machine must be described for one that goes on from a saved moment (`incoming`).
    """
    size = f"{hardware.memory_bytes // MIB}M"
    emulated = accelerator == EMULATED
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    # Saving takes another program, in a machine that runs nothing but our own. Elsewhere, whoever breaks into QEMU can
    # start nothing there.
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
    """The port of this machine that QEMU has chosen, read from its `info usernet`."""
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
    """As QEMU wants a comma in a value."""
    return str(path).replace(",", ",,")


def _uuid(machine_id: str) -> str:
    return "-".join((machine_id[:8], machine_id[8:12], machine_id[12:16], machine_id[16:20], machine_id[20:]))
