"""The operations of the spawner, and their encoding.

A plan is a list of operations. The numbers are those in `native/spawner/spawner.h`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple


class Verb(IntEnum):
    """What an operation does; `spawner.h` lists the arguments next to the same name."""

    CELL = 1
    CGROUP = 2
    SET = 3
    JOIN = 4
    INTO = 5
    SCRATCH = 6
    UNSHARE = 7
    IMAGE = 8
    NETWORK = 9
    FROZEN = 10
    MKDIR = 32
    SYMLINK = 33
    WRITE = 34
    MKNOD = 35
    XATTR = 36
    MOUNT = 37
    ROOT = 38
    HOSTNAME = 39
    CGROUP_NS = 40
    READ_ONLY = 41
    KEEP = 42
    ENSURE = 43
    COPY = 44
    UNMOUNT = 45
    SHOW = 46
    IDMAP = 47
    TRY_IDMAP = 48
    PART = 49
    TAKE = 50
    SOURCE = 51
    OVERLAY = 52
    USER = 64
    CAPS = 65
    EXEC = 66


class MountFlag(IntEnum):
    """Flags of mount(2)."""

    READ_ONLY = 1
    NO_SUID = 2
    NO_DEV = 4
    NO_EXEC = 8
    REMOUNT = 32
    BIND = 4096
    MOVE = 8192
    RECURSIVE = 16384
    UNBINDABLE = 1 << 17
    PRIVATE = 1 << 18


class Operation(NamedTuple):
    """One step of a plan. (A tuple: opening a substrate makes thousands of them.)"""

    verb: Verb
    arguments: tuple[str, ...] = ()


Plan = list[Operation]
_HEADER: Final = struct.Struct("<BI")
"""The verb, and the length of its arguments."""


def op(verb: Verb, *arguments: str | int) -> Operation:
    """An operation with its arguments as text."""
    return Operation(verb, tuple(map(str, arguments)))


def mkdir(path: str, mode: int = 0o755, owner: int = 0) -> Operation:
    """Make a directory with this mode and owner; an existing directory gets them too."""
    return op(Verb.MKDIR, path, f"{mode:o}", owner)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> Operation:
    """mount(2)."""
    return op(Verb.MOUNT, source, target, kind, flags, options)


def bind(source: str, target: str, flags: int = 0) -> Operation:
    """Bind-mount the tree at `source` to `target`."""
    return mount(source, target, flags=MountFlag.BIND | flags)


def encode(plan: Iterable[Operation]) -> bytes:
    """The plan in the spawner's wire format."""
    parts: list[bytes] = []
    for verb, arguments in plan:
        body = "\0".join((*arguments, "")).encode("utf-8", "surrogateescape")
        parts += (_HEADER.pack(verb, len(body)), body)
    return b"".join(parts)
