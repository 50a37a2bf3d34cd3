"""Detects whether KVM works, by booting a kernel with it: it may fail though /dev/kvm exists."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.images.commands import CommandFailed, run_command
from dutyfree.substrates.vm.plan import EMULATED, Kernel
from dutyfree.threads import in_thread

KVM: Final = "kvm"
_DEVICE: Final = "/dev/kvm"
_PROBE_S: Final = 10.0
_REACHED: Final = "Kernel panic"
"""The kernel prints this because it finds no root file system. It proves that the kernel has booted."""


async def detect(kernel: Kernel, directory: Path) -> str:
    """`kvm` if it works, else `tcg`. The answer is kept in `directory` until the host reboots."""
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return EMULATED
    note = directory / f"accelerator-{_boot_id()}"
    with suppress(OSError):
        known = await in_thread(note.read_text)
        if known in (KVM, EMULATED):
            return known
    answer = KVM if await _boots_with_kvm(kernel) else EMULATED
    with suppress(OSError):
        await in_thread(note.write_text, answer)
    return answer


def probe_argv(kernel: Kernel) -> list[str]:
    """QEMU's command line for a machine with a kernel and no disk, which prints a kernel panic and ends."""
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
        "-M", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256",
        "-kernel", str(kernel.image), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip


async def _boots_with_kvm(kernel: Kernel) -> bool:
    try:
        output = await run_command(probe_argv(kernel), timeout_s=_PROBE_S, env={"PATH": os.defpath, "LC_ALL": "C"})
    except (CommandFailed, DutyfreeError):
        return False
    return _REACHED in output


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
