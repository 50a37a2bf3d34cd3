"""Facts of the machine that explain why a step of a cell fails, read from the kernel's own files."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree import machine
from dutyfree.images.ownership import is_root
from dutyfree.images.store import state_directory
from dutyfree.substrates import claims, hierarchies
from dutyfree.substrates.cell.diagnosis.remedies import Place

CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "NET_ADMIN": 12,
    "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27, "SETFCAP": 31,
}  # fmt: skip
"""Those that a root's cells need, with the kernel's numbers."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What diagnosis knows of the machine and of this process. A setting is None where the kernel does not have it."""

    as_root: bool
    """Root of the machine, or of a container that shares the machine's ids; otherwise cells are made without root."""
    uid: int = 0
    """0 for root of a user namespace, too."""
    place: Place = Place.MACHINE
    capabilities: frozenset[str] = frozenset()
    """The effective ones, of those in `CAPABILITIES`."""
    filtered: bool = False
    """Whether a system call filter is set on this process."""
    kernel: tuple[int, int] = (6, 1)
    label: str = ""
    """The profile of the security module (AppArmor, SELinux) that this process runs under."""
    max_user_namespaces: int | None = None
    unprivileged_userns_clone: int | None = None
    apparmor_restrict_userns: int | None = None
    masked_proc: tuple[str, ...] = ()
    """What is mounted over parts of /proc."""
    root_is_mount: bool = True
    """False in a chroot."""
    root_type: str = ""
    """The file system at /."""
    unlimited: Mapping[str, str] = field(default_factory=dict)
    """Limits that cannot be held, each with the reason."""
    cgroup_version: int = 0
    unwritable: str = ""
    """The directory for state, if nothing can be written to it."""


def read_facts() -> Facts:
    """Look at this machine. Reads only, and never raises for what it cannot read."""
    status = _status(machine.read("/proc/self/status") or "")
    mounts = [line.split(" ") for line in (machine.read("/proc/self/mountinfo") or "").splitlines()]
    points = [mount[4] for mount in mounts if len(mount) > 4]
    found = hierarchies.find()
    return Facts(
        as_root=is_root(),
        uid=os.geteuid(),
        place=_place(os.environ, machine.read("/proc/self/cgroup") or ""),
        capabilities=capabilities_in(int(status.get("CapEff", "0"), 16)),
        filtered=status.get("Seccomp") == "2",
        kernel=kernel_version(platform.release()),
        label=(machine.read("/proc/self/attr/current") or "").strip("\0\n "),
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        unprivileged_userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restrict_userns=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        masked_proc=tuple(sorted({point for point in points if point.startswith("/proc/")} - {_BINFMT})),
        root_is_mount="/" in points,
        root_type=machine.file_system("/"),
        unlimited=found.missing,
        cgroup_version=found.version,
        unwritable=_unwritable(),
    )


def capabilities_in(mask: int) -> frozenset[str]:
    """The names of the capabilities in a mask as /proc/PID/status has it."""
    return frozenset(name for name, number in CAPABILITIES.items() if mask >> number & 1)


def kernel_version(release: str) -> tuple[int, int]:
    """Major and minor number."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


_BINFMT = "/proc/sys/fs/binfmt_misc"  # a file system of its own, which hides nothing


def _status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(path: str) -> int | None:
    text = (machine.read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _place(environment: Mapping[str, str], groups: str) -> Place:
    if "KUBERNETES_SERVICE_HOST" in environment or "kubepods" in groups:
        return Place.POD
    if Path("/run/.containerenv").exists():
        return Place.PODMAN
    if Path("/.dockerenv").exists() or "/docker/" in groups:
        return Place.DOCKER
    return Place.CONTAINER if environment.get("container") else Place.MACHINE


def _unwritable() -> str:
    """The directory that cells would keep their state in, if it cannot be made."""
    try:
        wanted = [state_directory(), claims.state_base()]
    except RuntimeError:  # no home directory
        return "the home directory"
    for directory in wanted:
        there = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
        if not os.access(there, os.W_OK | os.X_OK):
            return str(directory)
    return ""
