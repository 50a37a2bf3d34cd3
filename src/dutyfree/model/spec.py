"""The specification of a new sandbox, and the capabilities of a substrate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from dutyfree.checked import wrong
from dutyfree.errors import InvalidRequest
from dutyfree.model.cache import Cache, check_caches
from dutyfree.model.environment import check_env
from dutyfree.model.image import Image
from dutyfree.model.limits import Network, Resources
from dutyfree.model.mount import Mount, check_mounts
from dutyfree.values import dataclass

_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class Capability(StrEnum):
    """An optional ability of a substrate. Checks and callers ask for these, never for a substrate's name."""

    SESSIONS = "sessions"
    TERMINALS = "terminals"
    FILES = "files"
    LIMIT_MEMORY = "limit-memory"
    LIMIT_PIDS = "limit-pids"
    LIMIT_CPU = "limit-cpu"
    LIMIT_DISK = "limit-disk"
    DENY_NETWORK = "deny-network"
    HOST_NETWORK = "host-network"
    BRIDGE_NETWORK = "bridge-network"
    OWN_IDS = "own-ids"
    """No other sandbox, nor the host, has the user ids of a sandbox, so that limits per user are its own."""
    PRIVATE_FILES = "private-files"
    """No other sandbox and no host process sees what a sandbox writes."""
    KILL_TREE = "kill-tree"
    """A timeout also ends descendants that left the process group."""
    RESET = "reset"
    """A sandbox can be put back to its initial state; nothing that happened in it is left."""
    SNAPSHOT = "snapshot"
    """The files of a running sandbox can be frozen, and other sandboxes started from them."""
    FORK = "fork"
    """A running sandbox can be multiplied."""
    PAUSE = "pause"
    """A sandbox can be stopped with all its processes, and set going again."""
    WATCH = "watch"
    """The changes of a directory can be watched."""
    IMAGES = "images"
    """Sandboxes can start from layers of an image store."""
    HOST_FILES = "host-files"
    """Without an image, a sandbox sees the host's files; its changes to them stay in the sandbox."""
    USERS = "users"
    """Actions can run as any user of the sandbox, not only as its root."""
    PORTS = "ports"
    """Connections can be made to, and taken from, the ports of a sandbox, which has a loopback of its own."""
    MOUNTS = "mounts"
    """Directories and files of the host can be shown in a sandbox, read-only."""
    CACHES = "caches"
    """Sandboxes can share caches: each changes a copy of its own, and what it adds can be saved for the others."""
    EGRESS = "egress"
    """Programs of a sandbox can reach hosts by name, through the host's process and by the lease's rules."""
    HOST_PROCESSES = "host-processes"
    """Sandboxes are processes of this machine, so that leaks of them can be counted."""


class Writes(StrEnum):
    """Where a sandbox's own writes are kept."""

    MEMORY = "memory"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A limit or isolation that the spec asks for and this sandbox does not have."""

    what: Capability
    reason: str


def describe_unenforced(unenforced: Iterable[Unenforced]) -> str:
    """What is not enforced, in one line; each reason is named once, after all limits that it applies to."""
    reasons: dict[str, list[str]] = {}
    for each in unenforced:
        reasons.setdefault(each.reason, []).append(each.what)
    return "; ".join(f"{', '.join(what)} ({reason})" for reason, what in reasons.items())


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """All settings of a new sandbox."""

    resources: Resources = field(default_factory=Resources)
    network: Network = Network.NONE
    writes: Writes = Writes.MEMORY
    env: Mapping[str, str] = field(default_factory=dict)
    hostname: str = "dutyfree"
    image: Image = field(default_factory=Image)
    """What it starts from. `env` overrides the image's environment."""
    mounts: tuple[Mount, ...] = ()
    """What it sees of the host, read-only; never part of its snapshots."""
    caches: tuple[Cache, ...] = ()
    """Directories that it shares with others by versions; never part of its snapshots."""

    def __post_init__(self) -> None:
        if not _HOSTNAME.fullmatch(self.hostname):
            raise InvalidRequest(f"hostname {self.hostname!r} is not a single DNS label")
        check_env(self.env)
        if not isinstance(self.resources, Resources):
            raise wrong("resources", self.resources, "a Resources", hint='dutyfree.Resources(memory_bytes="512m")')
        if self.mounts:
            object.__setattr__(self, "mounts", check_mounts(self.mounts))
        if self.caches:
            object.__setattr__(self, "caches", check_caches(self.caches, self.mounts))
