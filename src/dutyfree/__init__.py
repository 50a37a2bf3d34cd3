"""Coding-agent rollouts without the infrastructure tax.

`dutyfree.local` is a host that gives out sandboxes on this machine; `dutyfree.sync.local` is the same without `await`.
What needs an event loop is loaded when it is first used: the command line answers `--help` without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dutyfree.errors import (
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
    SandboxGone,
    SandboxReset,
    SessionEnded,
    SubstrateFailed,
    SubstrateUnavailable,
    Unsupported,
)
from dutyfree.model import (
    Capability,
    Chunk,
    FileInfo,
    FileInput,
    FileKind,
    GitInput,
    Image,
    Isolation,
    Network,
    Observation,
    Phase,
    Recipe,
    Resources,
    Span,
    Stage,
    Unenforced,
    Writes,
)

if TYPE_CHECKING:
    from dutyfree import sync
    from dutyfree.client.box import Box
    from dutyfree.client.local import LocalHost, local
    from dutyfree.client.stream import Stream
    from dutyfree.images.recipes.file import load_recipe
    from dutyfree.leases.secret import Secret
    from dutyfree.pool.options import PoolOptions

__version__ = "0.1.0"

__all__ = [
    "ArchiveRefused",
    "Box",
    "BuildFailed",
    "CallerError",
    "Capability",
    "CapacityError",
    "Chunk",
    "DeadlineExceeded",
    "DutyfreeError",
    "FileFailed",
    "FileInfo",
    "FileInput",
    "FileKind",
    "GitInput",
    "GuestMisbehaved",
    "Image",
    "InfraFailed",
    "InvalidRequest",
    "Isolation",
    "LeaseLost",
    "LinkFailed",
    "LocalHost",
    "Network",
    "Observation",
    "Phase",
    "PoolOptions",
    "Recipe",
    "Resources",
    "SandboxGone",
    "SandboxReset",
    "Secret",
    "SessionEnded",
    "Span",
    "Stage",
    "Stream",
    "SubstrateFailed",
    "SubstrateUnavailable",
    "Unenforced",
    "Unsupported",
    "Writes",
    "__version__",
    "load_recipe",
    "local",
    "sync",
]


_ELSEWHERE = {
    "load_recipe": "dutyfree.images.recipes.file",
    "PoolOptions": "dutyfree.pool.options",
    "Secret": "dutyfree.leases.binding",
}


def __getattr__(name: str) -> object:
    if name == "sync":
        return importlib.import_module("dutyfree.sync")
    if name in ("Box", "LocalHost", "Stream", "local"):
        return getattr(importlib.import_module("dutyfree.client"), name)
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'dutyfree' has no attribute {name!r}")
