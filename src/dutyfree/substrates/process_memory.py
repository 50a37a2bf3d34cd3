"""The memory of processes of this machine, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dutyfree.model import Usage

PROC: Final = Path("/proc")
MAX_PROCESSES: Final = 256
"""Of one tree. Each costs a read, so that the memory of a larger tree is not measured."""


def tree_usage(pid: int, *, proc: Path = PROC) -> Usage | None:
    """What a process and its descendants take; None if the process is gone, or the tree is too large. Blocks."""
    total_bytes = process_bytes(pid, proc=proc)
    if total_bytes is None:
        return None
    pending, count = _children(pid, proc), 1
    while pending:
        child = pending.pop()
        count += 1
        if count > MAX_PROCESSES:
            return None
        total_bytes += process_bytes(child, proc=proc) or 0  # it may have ended meanwhile
        pending += _children(child, proc)
    return Usage(total_bytes)


def process_bytes(pid: int, *, proc: Path = PROC) -> int | None:
    """What one process takes: pages that several processes share count in parts. None if it is gone. Blocks."""
    try:
        for line in (proc / f"{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # another user's process, or a kernel without this file
    try:
        return int((proc / f"{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return None


def _children(pid: int, proc: Path) -> list[int]:
    """The children of all threads of a process; none if it is gone."""
    try:
        lists = [path.read_text() for path in (proc / f"{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]
