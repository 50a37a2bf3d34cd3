"""Coding-agent rollouts without the infrastructure tax.

`dutyfree.local` is a host that gives out sandboxes on this machine; `dutyfree.sync.local` is the same without `await`.
What needs an event loop is loaded when it is first used: the command line answers `--help` without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dutyfree.errors import (
    ActionFailed,
    ArchiveRefused,
    BuildFailed,
    CallerError,
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    FileFailed,
    GuestMisbehaved,
    InfraFailed,
    InvalidRequest,
    LeaseLost,
    LinkFailed,
    PatchRefused,
    PortFailed,
    SandboxGone,
    SandboxPaused,
    SandboxReset,
    SessionEnded,
    SubstrateFailed,
    SubstrateUnavailable,
    UnenforcedWarning,
    Unsupported,
)
from dutyfree.model import (
    Capability,
    Chunk,
    Egress,
    EgressRecord,
    FileEvent,
    FileEventKind,
    FileInfo,
    FileInput,
    FileKind,
    GitInput,
    Image,
    Isolation,
    ListeningPort,
    Metrics,
    Mount,
    Network,
    Observation,
    OutputChunk,
    Phase,
    ProcessInfo,
    Recipe,
    Resources,
    Span,
    Stage,
    Unenforced,
    Usage,
    Writes,
)

if TYPE_CHECKING:
    from dutyfree import sync
    from dutyfree.client.box import Box
    from dutyfree.client.groups import Group, Rollout
    from dutyfree.client.host import Host
    from dutyfree.client.host_pool import HostPool
    from dutyfree.client.local import LocalHost, local
    from dutyfree.client.ports import Forward
    from dutyfree.client.process import Process
    from dutyfree.client.stream import Stream
    from dutyfree.contract import Connection, Files, Session, Snapshot, Substrate, Terminal, Watch
    from dutyfree.images.recipes.file import load_recipe
    from dutyfree.leases.secret import Secret
    from dutyfree.leases.table import Lease
    from dutyfree.pool.options import PoolOptions
    from dutyfree.pool.status import PoolStatus

__version__ = "0.1.0"

__all__ = [
    "ActionFailed",
    "ArchiveRefused",
    "Box",
    "BuildFailed",
    "CallerError",
    "Capability",
    "CapacityError",
    "Chunk",
    "Connection",
    "DeadlineExceeded",
    "DutyfreeError",
    "Egress",
    "EgressRecord",
    "FileFailed",
    "FileEvent",
    "FileEventKind",
    "FileInfo",
    "FileInput",
    "FileKind",
    "Files",
    "Forward",
    "GitInput",
    "Group",
    "GuestMisbehaved",
    "Host",
    "HostPool",
    "Image",
    "InfraFailed",
    "InvalidRequest",
    "Isolation",
    "Lease",
    "LeaseLost",
    "LinkFailed",
    "ListeningPort",
    "LocalHost",
    "Mount",
    "Metrics",
    "Network",
    "Observation",
    "OutputChunk",
    "Phase",
    "PoolOptions",
    "PoolStatus",
    "Process",
    "ProcessInfo",
    "PatchRefused",
    "PortFailed",
    "Recipe",
    "Resources",
    "Rollout",
    "SandboxGone",
    "SandboxPaused",
    "SandboxReset",
    "Secret",
    "Session",
    "SessionEnded",
    "Snapshot",
    "Span",
    "Stage",
    "Stream",
    "Substrate",
    "SubstrateFailed",
    "SubstrateUnavailable",
    "Terminal",
    "Unenforced",
    "UnenforcedWarning",
    "Unsupported",
    "Usage",
    "Watch",
    "Writes",
    "__version__",
    "load_recipe",
    "local",
    "sync",
]


_ELSEWHERE = {
    "Box": "dutyfree.client.box",
    "Connection": "dutyfree.contract",
    "Files": "dutyfree.contract",
    "Forward": "dutyfree.client.ports",
    "Group": "dutyfree.client.groups",
    "Host": "dutyfree.client.host",
    "HostPool": "dutyfree.client.host_pool",
    "Lease": "dutyfree.leases.table",
    "LocalHost": "dutyfree.client.local",
    "PoolOptions": "dutyfree.pool.options",
    "PoolStatus": "dutyfree.pool.status",
    "Rollout": "dutyfree.client.groups",
    "Secret": "dutyfree.leases.secret",
    "Session": "dutyfree.contract",
    "Snapshot": "dutyfree.contract",
    "Process": "dutyfree.client.process",
    "Stream": "dutyfree.client.stream",
    "Substrate": "dutyfree.contract",
    "Terminal": "dutyfree.contract",
    "Watch": "dutyfree.contract",
    "load_recipe": "dutyfree.images.recipes.file",
    "local": "dutyfree.client.local",
}
"""What is imported when it is first used: `import dutyfree` stays quick."""


def __getattr__(name: str) -> object:
    if name == "sync":
        return importlib.import_module("dutyfree.sync")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'dutyfree' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
