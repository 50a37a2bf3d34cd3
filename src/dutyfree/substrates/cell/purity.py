"""Is a cell as it was made? Its condition is compared with that of a cell in which nothing has happened yet."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from dutyfree.errors import SubstrateFailed


@dataclass(frozen=True, slots=True)
class Condition:
    """What can be told of a cell from outside, without its help."""

    processes: int
    """Beside the guest."""
    sockets: int
    written: tuple[int, int] | tuple[str, ...]
    """How much of its writable space is used, in blocks and files; on a shared disk, what is in it."""


def inspect(pid: int, *, own_network: bool, upper: Path | None) -> Condition:
    """Look at the cell whose guest has that process id. `upper`: where it writes, if that is on a shared disk.

    Raises SubstrateFailed if it is dead.
    """
    try:
        return Condition(
            processes=len(_read(f"/proc/{pid}/task/{pid}/children").split()),  # a guest has one thread
            sockets=_sockets(pid) if own_network else 0,
            written=_written(pid) if upper is None else tuple(sorted(os.listdir(upper))),  # noqa: PTH208 - names alone
        )
    except OSError as error:
        raise SubstrateFailed(f"the sandbox died while it was looked at: {error.strerror}") from None


def differences(found: Condition, wanted: Condition) -> list[str]:
    """What is not as it should be, in words."""
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
    space = os.statvfs(f"/proc/{pid}/root")  # an overlay answers for the file system of its upper
    return space.f_blocks - space.f_bfree, space.f_files - space.f_ffree


def _sockets(pid: int) -> int:
    """Those of every family, with and without a process, and the closed connections that still keep their ports.

    The lists of connections would tell more, and take milliseconds.
    """
    words = _read(f"/proc/{pid}/net/sockstat").split()
    # "sockets: used N TCP: inuse N orphan N tw N ...", of both IP families. "used" counts orphans, too; "orphan" itself
    # is the number of the whole machine.
    return int(words[2]) + int(words[words.index(b"tw") + 1])


def _read(path: str) -> bytes:
    """The beginning of a file of the kernel's; without the layers of Python's files, which cost more than the file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
