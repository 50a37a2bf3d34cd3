"""Limits on the resources and the network of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dutyfree.errors import InvalidRequest

MIB = 1024 * 1024
GIB = 1024 * MIB


class Network(StrEnum):
    """The network that a sandbox has."""

    NONE = "none"
    """A loopback interface of its own, and nothing else."""
    BRIDGE = "bridge"
    """A network of its own, with outward connections through the host; where the substrate has one."""
    HOST = "host"
    """The host's own network, unfiltered."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Upper bounds. `None` means unbounded; a bound that a substrate cannot enforce is reported as such."""

    memory_bytes: int | None = 4 * GIB
    cpus: float | None = None
    pids: int | None = 1024
    disk_bytes: int | None = 2 * GIB
    """What a sandbox may write. In memory (`Writes.MEMORY`) it counts as memory, too, and gets half of that at most."""

    def __post_init__(self) -> None:
        for name, least in (("memory_bytes", 8 * MIB), ("pids", 4), ("disk_bytes", MIB)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequest(f"{name} is {value}; the least that works is {least}")
        if self.cpus is not None and not 0.01 <= self.cpus <= 4096:
            raise InvalidRequest(f"cpus is {self.cpus}; it must lie between 0.01 and 4096")
