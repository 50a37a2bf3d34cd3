"""The plan of a microVM: QEMU's arguments, and the order that init gets. All functions are pure."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dutyfree.errors import InvalidRequest
from dutyfree.model import Resources
from dutyfree.model.limits import GIB, MIB

Accelerator = Literal["kvm", "tcg"]
PROGRAM: Final = "qemu-system-x86_64"
STREAM_PORT: Final = "dutyfree"
CONTROL_PORT: Final = "dutyfree-control"
READY: Final = b"R"
"""Sent by init when it waits for its order, and by the guest when it is ready for the handshake."""
AGAIN: Final = b"A"
"""Sent to the guest of a clone: the guest ends all processes and starts with a new handshake."""
UNBOUNDED_BYTES: Final = 4 * GIB
MAX_CPUS: Final = 64
_OVERHEAD_BYTES: Final = 96 * MIB
"""The kernel's own memory, its page structures included."""
_MEMORY_STEP_BYTES: Final = 64 * MIB
_BYTES_PER_INODE: Final = 8192
_CPU_PERIOD_US: Final = 100_000
_ORDER: Final = struct.Struct("<IIQQQQQ16x")
_MAGIC: Final = 0x4D564644

_CONFINED: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""Seccomp: a guest that breaks into QEMU cannot start a program on the host."""
_QUIET: Final = "console=ttyS0 quiet loglevel=1 panic=-1 reboot=t random.trust_cpu=on"
_EMULATED: Final = "nokaslr tsc=reliable no_timer_check init_on_alloc=0 mitigations=off"
"""Switches off what slows an emulated processor down. Mitigations of processor bugs protect no emulated processor."""


def clock(now_ns: int) -> bytes:
    """The message that gives a guest the current time, after its machine was stopped for a while."""
    return struct.pack("<cQ", b"C", now_ns)


@dataclass(frozen=True, slots=True)
class Build:
    """A machine without its image. All machines of one build can be restored from one saved machine."""

    kernel: Path
    initrd: Path
    memory_bytes: int
    cpus: int
    accelerator: Accelerator
    tsc_khz: int = 0
    """The frequency of this host's time stamp counter: an emulated kernel cannot measure it well. 0 if unknown."""

    def key(self, *facts: str) -> str:
        """The digest that names a saved machine of this build; `facts` are what else it depends on."""
        parts = (self.kernel, self.initrd, self.memory_bytes, self.cpus, self.accelerator, self.tsc_khz, *facts)
        return hashlib.sha256(repr([str(each) for each in parts]).encode()).hexdigest()[:40]


def machine_bytes(resources: Resources) -> int:
    """The memory of the machine: the sandbox's bound, and room for the machine's kernel."""
    wanted = (resources.memory_bytes or UNBOUNDED_BYTES) + (resources.memory_bytes or 0) // 50 + _OVERHEAD_BYTES
    return -(-wanted // _MEMORY_STEP_BYTES) * _MEMORY_STEP_BYTES


def machine_cpus(resources: Resources, accelerator: Accelerator, host_cpus: int) -> int:
    """The number of processors: as requested; by default as many as the host has, or one if they are emulated."""
    if resources.cpus is None:
        return 1 if accelerator == "tcg" else min(host_cpus, MAX_CPUS)
    if resources.cpus > MAX_CPUS:
        raise InvalidRequest(f"a microVM has at most {MAX_CPUS} processors, not {resources.cpus:g}")
    return math.ceil(resources.cpus)


def order(resources: Resources) -> bytes:
    """The message to init with the sandbox's bounds. See native/init/order.h."""
    memory_bytes = resources.memory_bytes or 0
    disk_bytes = (memory_bytes or UNBOUNDED_BYTES) // 2  # the disk is a tmpfs in the machine's memory
    if resources.disk_bytes is not None:
        disk_bytes = min(disk_bytes, resources.disk_bytes)
    cpu_us = 0 if resources.cpus is None else int(resources.cpus * _CPU_PERIOD_US)
    inodes = max(disk_bytes // _BYTES_PER_INODE, 64)
    return _ORDER.pack(_MAGIC, 0, disk_bytes, inodes, memory_bytes, resources.pids or 0, cpu_us)


def arguments(
    build: Build,
    *,
    memory: Path,
    shared: bool,
    device: Path,
    port_fds: tuple[int, int],
    incoming_fd: int | None = None,
) -> list[str]:
    """QEMU's command line: it boots the kernel or, with `incoming_fd`, restores the saved machine with this `memory`.

    Without `shared`, the machine never changes the memory file. `port_fds` are connected sockets for the guest's stream
    and the control port.
    """
    stream_fd, control_fd = port_fds
    emulated = build.accelerator == "tcg"
    counting = f"{_EMULATED} tsc_early_khz={build.tsc_khz}" if emulated and build.tsc_khz else ""
    share = "on" if shared else "off"
    argv = [
        PROGRAM, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-sandbox", _CONFINED,
        "-M", "microvm,memory-backend=memory,x-option-roms=off,isa-serial=on,rtc=on",
        "-accel", "tcg,thread=single" if emulated else "kvm", "-cpu", "max" if emulated else "host",
        "-smp", str(build.cpus), "-m", str(build.memory_bytes // MIB),
        "-object", f"memory-backend-file,id=memory,size={build.memory_bytes},mem-path={_quoted(memory)},share={share}",
        "-kernel", str(build.kernel), "-initrd", str(build.initrd), "-append", f"{_QUIET} {counting}".strip(),
        "-chardev", "ringbuf,id=console,size=16384", "-serial", "chardev:console",
        "-global", "migration.send-configuration=off",
        "-global", "virtio-mmio.force-legacy=false",
        "-drive", f"if=none,id=image,format=raw,read-only=on,cache=writeback,file.locking=off,file={_quoted(device)}",
        "-device", "virtio-blk-device,drive=image",
        "-device", "virtio-serial-device",
        "-chardev", f"socket,id=stream,fd={stream_fd}",
        "-device", f"virtserialport,chardev=stream,name={STREAM_PORT}",
        "-chardev", f"socket,id=control,fd={control_fd}",
        "-device", f"virtserialport,chardev=control,name={CONTROL_PORT}",
    ]  # fmt: skip
    return argv if incoming_fd is None else [*argv, "-incoming", f"fd:{incoming_fd}"]


def _quoted(path: Path) -> str:
    """The path with commas doubled: a single comma ends a value in QEMU's arguments."""
    return str(path).replace(",", ",,")
