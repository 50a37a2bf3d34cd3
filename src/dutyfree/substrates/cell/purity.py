"""Checks whether a cell is as it was made, by comparing its condition with that of a new cell."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a cell, as seen from outside, without its help."""

    processes: int
    """The number of processes beside the guest."""
    sockets: int
    written: tuple[int, int] | tuple[str, ...]
    """The used blocks and files of the writable space; on a shared disk, the names in it."""


def inspect(pid: int, *, own_network: bool, upper: Path | None) -> Condition:
    """Read the condition of the cell whose guest is `pid`. `upper`: its writable directory, if on a shared disk.

    Raises SubstrateFailed if the cell is dead.
    """
    try:
        return Condition(
            processes=len(_read(f"/proc/{pid}/task/{pid}/children").split()),  # a guest has one thread
            sockets=_sockets(pid) if own_network else 0,
            written=_written(pid) if upper is None else tuple(sorted(os.listdir(upper))),  # noqa: PTH208 - names alone
        )
    except OSError as error:
        raise SubstrateFailed(f"the sandbox died while it was inspected: {error.strerror}") from None


def differences(found: Condition, wanted: Condition) -> list[str]:
    """The differences between two conditions, in words."""
    names = [each.name for each in fields(Condition) if getattr(found, each.name) != getattr(wanted, each.name)]
    return [f"{name}: {getattr(found, name)}, not {getattr(wanted, name)}" for name in names]


def written_bytes(pid: int) -> int:
    """The space that the cell's files take in a file system of their own. Raises SubstrateFailed."""
    try:
        space = os.statvfs(f"/proc/{pid}/root")
    except OSError as error:
        raise SubstrateFailed(f"the sandbox died while it was measured: {error.strerror}") from None
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def _written(pid: int) -> tuple[int, int]:
    space = os.statvfs(f"/proc/{pid}/root")  # an overlay reports the numbers of its upper's file system
    return space.f_blocks - space.f_bfree, space.f_files - space.f_ffree


def _sockets(pid: int) -> int:
    """The number of sockets of all families, with and without a process, and of connections in TIME_WAIT.

    The kernel's lists of connections would give more details, but reading them takes milliseconds.
    """
    words = _read(f"/proc/{pid}/net/sockstat").split()
    # "sockets: used N TCP: inuse N orphan N tw N ...", for both IP families. "used" includes orphans; "orphan" counts
    # the whole machine.
    return int(words[2]) + int(words[words.index(b"tw") + 1])


def _read(path: str) -> bytes:
    """The first 4 KiB of a kernel file. Without Python's file objects, which take longer than the read itself."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
