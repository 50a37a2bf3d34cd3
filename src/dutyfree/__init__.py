"""Coding-agent rollouts without the infrastructure tax.

`dutyfree.local` is a host that gives out sandboxes on this machine; `dutyfree.sync.local` is the same without `await`.
Every name is loaded when it is first used: `import dutyfree` costs a fraction of starting Python.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it would double the time of this import

if TYPE_CHECKING:
    from dutyfree import sync
    from dutyfree.client.box import Box
    from dutyfree.client.groups import Group, Rollout, Rollouts
    from dutyfree.client.host import Host
    from dutyfree.client.host_pool import HostPool
    from dutyfree.client.local import LocalHost, local
    from dutyfree.client.ports import Forward
    from dutyfree.client.process import Process
    from dutyfree.client.python_mounts import python_mounts
    from dutyfree.client.stream import Stream
    from dutyfree.contract import Connection, Files, Session, Snapshot, Substrate, Terminal, Watch
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
        ImageNotFound,
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
        Unauthenticated,
        UnenforcedWarning,
        Unsupported,
    )
    from dutyfree.images.recipes.file import load_recipe
    from dutyfree.leases.secret import Secret
    from dutyfree.leases.table import Lease
    from dutyfree.model import (
        Bill,
        Cache,
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
        SavedCache,
        Span,
        Stage,
        Unenforced,
        Usage,
        Writes,
    )
    from dutyfree.pool.options import PoolOptions
    from dutyfree.pool.status import PoolStatus
    from dutyfree.remote.host import RemoteHost, connect

__version__ = "0.1.0"

__all__ = [
    "ActionFailed",
    "ArchiveRefused",
    "Bill",
    "Box",
    "BuildFailed",
    "Cache",
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
    "ImageNotFound",
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
    "RemoteHost",
    "Resources",
    "Rollout",
    "Rollouts",
    "SandboxGone",
    "SandboxPaused",
    "SandboxReset",
    "SavedCache",
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
    "Unauthenticated",
    "Unenforced",
    "UnenforcedWarning",
    "Unsupported",
    "Usage",
    "Watch",
    "Writes",
    "__version__",
    "connect",
    "load_recipe",
    "local",
    "python_mounts",
    "sync",
]

_HOMES = {
    "dutyfree.client.box": ("Box",),
    "dutyfree.client.groups": ("Group", "Rollout", "Rollouts"),
    "dutyfree.client.host": ("Host",),
    "dutyfree.client.host_pool": ("HostPool",),
    "dutyfree.client.local": ("LocalHost", "local"),
    "dutyfree.client.ports": ("Forward",),
    "dutyfree.client.process": ("Process",),
    "dutyfree.client.python_mounts": ("python_mounts",),
    "dutyfree.client.stream": ("Stream",),
    "dutyfree.contract": ("Connection", "Files", "Session", "Snapshot", "Substrate", "Terminal", "Watch"),
    "dutyfree.errors": (
        "ActionFailed",
        "ArchiveRefused",
        "BuildFailed",
        "CallerError",
        "CapacityError",
        "DeadlineExceeded",
        "DutyfreeError",
        "FileFailed",
        "GuestMisbehaved",
        "ImageNotFound",
        "InfraFailed",
        "InvalidRequest",
        "LeaseLost",
        "LinkFailed",
        "PatchRefused",
        "PortFailed",
        "SandboxGone",
        "SandboxPaused",
        "SandboxReset",
        "SessionEnded",
        "SubstrateFailed",
        "SubstrateUnavailable",
        "Unauthenticated",
        "UnenforcedWarning",
        "Unsupported",
    ),
    "dutyfree.images.recipes.file": ("load_recipe",),
    "dutyfree.leases.secret": ("Secret",),
    "dutyfree.leases.table": ("Lease",),
    "dutyfree.model": (
        "Bill",
        "Cache",
        "Capability",
        "Chunk",
        "Egress",
        "EgressRecord",
        "FileEvent",
        "FileEventKind",
        "FileInfo",
        "FileInput",
        "FileKind",
        "GitInput",
        "Image",
        "Isolation",
        "ListeningPort",
        "Metrics",
        "Mount",
        "Network",
        "Observation",
        "OutputChunk",
        "Phase",
        "ProcessInfo",
        "Recipe",
        "Resources",
        "SavedCache",
        "Span",
        "Stage",
        "Unenforced",
        "Usage",
        "Writes",
    ),
    "dutyfree.pool.options": ("PoolOptions",),
    "dutyfree.pool.status": ("PoolStatus",),
    "dutyfree.remote.host": ("RemoteHost", "connect"),
}
"""The names of each module that are also names of this package. A test compares them with the imports above."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "sync":
        return import_module("dutyfree.sync")
    for module, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'dutyfree' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What users can use, and no names that only this file needs.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
