"""The size of a sandbox's writable space in memory, for cells and for gVisor."""

from __future__ import annotations

from typing import Final

from dutyfree.model import Resources

_BYTES_PER_INODE: Final = 8192


def memory_disk_bytes(resources: Resources) -> int | None:
    """The size limit of a disk in memory; None if there is none.

    Its files count as memory, and killing processes does not free them: half of the memory limit is left for processes.
    """
    bounds = [resources.disk_bytes, resources.memory_bytes and resources.memory_bytes // 2]
    return min((bound for bound in bounds if bound is not None), default=None)


def inodes_for(limit_bytes: int) -> int:
    """The number of files that a disk of this size may hold."""
    return max(1024, limit_bytes // _BYTES_PER_INODE)
