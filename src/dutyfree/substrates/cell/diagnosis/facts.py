"""Facts of the machine that explain why a step of a cell fails, read from the kernel's own files."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree import machine
from dutyfree.images.ownership import is_root, missing_capabilities
from dutyfree.places import runtime_directory, state_directory
from dutyfree.substrates import hierarchies
from dutyfree.substrates.cell.diagnosis.remedies import Place
from dutyfree.substrates.cell.mounts import EMPTY_IN_PROC


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the machine and this process. A setting is None if the kernel does not have it."""

    as_root: bool
    """Whether this process is root with all needed capabilities; otherwise cells are made as by an ordinary user."""
    uid: int = 0
    """Also 0 for root of a user namespace, and for root without all capabilities."""
    in_user_namespace: bool = False
    place: Place = Place.MACHINE
    missing_capabilities: frozenset[str] = frozenset()
    """The capabilities that are missing for making cells as root."""
    filtered: bool = False
    """Whether a system call filter is set on this process."""
    kernel: tuple[int, int] = (6, 1)
    label: str = ""
    """The profile of the security module (AppArmor, SELinux) that this process runs under."""
    max_user_namespaces: int | None = None
    unprivileged_userns_clone: int | None = None
    apparmor_restrict_userns: int | None = None
    masked_proc: tuple[str, ...] = ()
    """The mounts over parts of /proc."""
    root_is_mount: bool = True
    """False in a chroot."""
    root_type: str = ""
    """The file system at /."""
    unlimited: Mapping[str, str] = field(default_factory=dict)
    """Limits that cannot be enforced, each with the reason."""
    cgroup_version: int = 0
    volatile_state: str = ""
    """The state directory, if it is not a lasting one; empty if it is."""


def read_facts() -> Facts:
    """Read the facts of this machine. Changes nothing, and ignores files that cannot be read."""
    text = machine.read("/proc/self/status") or "CapEff: 0"
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    mounts = [line.split(" ") for line in (machine.read("/proc/self/mountinfo") or "").splitlines()]
    points = [mount[4] for mount in mounts if len(mount) > 4]
    found = hierarchies.find()
    return Facts(
        as_root=is_root(),
        uid=os.geteuid(),
        in_user_namespace=(machine.read("/proc/self/uid_map") or "").split() != ["0", "0", "4294967295"],
        place=_place(os.environ, machine.read("/proc/self/cgroup") or ""),
        missing_capabilities=frozenset(missing_capabilities(text)),
        filtered=status.get("Seccomp") == "2",
        kernel=kernel_version(platform.release()),
        label=(machine.read("/proc/self/attr/current") or "").strip("\0\n "),
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        unprivileged_userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restrict_userns=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        masked_proc=tuple(sorted({point for point in points if point.startswith("/proc/")} - {*EMPTY_IN_PROC})),
        root_is_mount="/" in points,
        root_type=machine.file_system("/"),
        unlimited=found.missing,
        cgroup_version=found.version,
        volatile_state=_volatile_state(),
    )


def kernel_version(release: str) -> tuple[int, int]:
    """The major and minor number of a kernel release."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


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


def _volatile_state() -> str:
    state = state_directory()
    return str(state) if state.is_relative_to(runtime_directory()) else ""
