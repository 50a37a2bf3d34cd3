"""Limits on the resources and the network of a sandbox."""

from __future__ import annotations

from enum import StrEnum
from numbers import Real

from dutyfree.checked import size_bytes, whole, wrong
from dutyfree.values import dataclass

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


@dataclass(frozen=True, slots=True, init=False)
class Resources:
    """Upper bounds. `None` means unbounded; a bound that a substrate cannot enforce is reported as such.

    Sizes are bytes, or text as people write it: `Resources(memory_bytes="512m")`. Raises InvalidRequest.
    """

    memory_bytes: int | None = 4 * GIB
    cpus: float | None = None
    pids: int | None = 1024
    disk_bytes: int | None = 2 * GIB
    """What a sandbox may write. In memory (`Writes.MEMORY`) it counts as memory, too, and gets half of that at most."""

    def __init__(
        self,
        memory_bytes: int | str | None = 4 * GIB,
        cpus: float | None = None,
        pids: int | None = 1024,
        disk_bytes: int | str | None = 2 * GIB,
    ) -> None:
        values = {
            "memory_bytes": None if memory_bytes is None else size_bytes("memory_bytes", memory_bytes, least=8 * MIB),
            "cpus": None if cpus is None else _cpus(cpus),
            "pids": None if pids is None else whole("pids", pids, least=4),
            "disk_bytes": None if disk_bytes is None else size_bytes("disk_bytes", disk_bytes, least=MIB),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _cpus(value: float) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0.01 <= value <= 4096:
        raise wrong("cpus", value, "a number between 0.01 and 4096")
    return value
