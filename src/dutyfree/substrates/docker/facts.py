"""Facts about an engine, read once when the substrate is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Capability
from dutyfree.substrates.docker.address import Address

OLDEST_API: Final = (1, 40)
"""The version of Docker 19.03. Every maintained Podman has at least this version."""
_LIMITS: Final = {
    "MemoryLimit": Capability.LIMIT_MEMORY,
    "PidsLimit": Capability.LIMIT_PIDS,
    "CpuCfsQuota": Capability.LIMIT_CPU,
}
_SIZED_DRIVERS: Final = frozenset({"btrfs", "zfs"})
"""Storage drivers that can always limit a container's disk; overlay can only on XFS mounted with quotas."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one engine. `limits`: the limits that it can enforce on containers."""

    version: str
    api: tuple[int, int]
    local: bool
    """Whether its containers run on this machine."""
    cpus: int
    limits: frozenset[Capability]
    runtimes: frozenset[str]
    bridge: bool


def api_version(version: Mapping[str, Any]) -> tuple[int, int]:
    """The newest API version of the engine. Raises SubstrateUnavailable if it is too old, or not a Docker engine."""
    try:
        major, minor = (int(part) for part in str(version["ApiVersion"]).split("."))
    except (KeyError, ValueError):
        raise SubstrateUnavailable(
            "the program that answers is not a Docker engine", hint="set DOCKER_HOST to the engine's socket"
        ) from None
    if (major, minor) < OLDEST_API:
        raise SubstrateUnavailable(
            f"the engine is too old: it has version {major}.{minor} of Docker's API",
            hint=f"{OLDEST_API[0]}.{OLDEST_API[1]} is needed: Docker 19.03 or newer",
        )
    return major, minor


def read(address: Address, version: Mapping[str, Any], info: Mapping[str, Any], networks: list[Any]) -> Facts:
    """The facts from the engine's answers to `/version`, `/info` and `/networks`."""
    limits = {limit for name, limit in _LIMITS.items() if info.get(name)}
    if info.get("Driver") in _SIZED_DRIVERS:
        limits.add(Capability.LIMIT_DISK)
    here = os.uname()
    return Facts(
        version=f"{version.get('Version', '?')}"[:80],
        api=api_version(version),
        local=bool(address.path) and (info.get("Name"), info.get("KernelVersion")) == (here.nodename, here.release),
        cpus=int(info.get("NCPU") or 0),
        limits=frozenset(limits),
        runtimes=frozenset(info.get("Runtimes") or ()),
        bridge=any(isinstance(each, Mapping) and each.get("Driver") == "bridge" for each in networks),
    )
