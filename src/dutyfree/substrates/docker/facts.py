"""What an engine tells about itself, read once when a substrate is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Capability
from dutyfree.substrates.docker.address import Address

OLDEST_API: Final = (1, 40)
"""That of Docker 19.03, and of every Podman that is still cared for."""
_LIMITS: Final = {
    "MemoryLimit": Capability.LIMIT_MEMORY,
    "PidsLimit": Capability.LIMIT_PIDS,
    "CpuCfsQuota": Capability.LIMIT_CPU,
}
_SIZED_DRIVERS: Final = frozenset({"btrfs", "zfs"})
"""Those that can bound a container's writes whatever they lie on; overlay needs XFS mounted with quotas for it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`limits`: those that it holds containers to."""

    version: str
    api: tuple[int, int]
    local: bool
    """Whether its containers are processes of this machine."""
    cpus: int
    limits: frozenset[Capability]
    runtimes: frozenset[str]
    bridge: bool


def api_version(told: Mapping[str, Any]) -> tuple[int, int]:
    """The newest API that it speaks. Raises SubstrateUnavailable for one that is too old, or that is none."""
    try:
        major, minor = (int(part) for part in str(told["ApiVersion"]).split("."))
    except (KeyError, ValueError):
        raise SubstrateUnavailable(
            "what answers there is not a Docker engine", hint="let DOCKER_HOST name the engine's socket"
        ) from None
    if (major, minor) < OLDEST_API:
        raise SubstrateUnavailable(
            f"the engine is too old: it speaks version {major}.{minor} of Docker's API",
            hint=f"{OLDEST_API[0]}.{OLDEST_API[1]} is needed: Docker 19.03 or newer",
        )
    return major, minor


def read(address: Address, version: Mapping[str, Any], info: Mapping[str, Any], networks: list[Any]) -> Facts:
    """Put together what `/version`, `/info` and `/networks` say."""
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
