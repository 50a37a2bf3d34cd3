"""Reads what a sandbox uses from the kernel's files: control groups of versions 1 and 2, and `/proc`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dutyfree.model import Capability, Metrics, Resources, Unenforced

PROC: Final = Path("/proc")
MAX_PROCESSES: Final = 65536
_MEMORY: Final = ("memory.current", "memory.usage_in_bytes")
_MEMORY_PEAK: Final = ("memory.peak", "memory.max_usage_in_bytes")


def measure(
    pid: int | None, groups: Iterable[str], *, counts_processes: bool = True, own_network: bool = True
) -> Metrics:
    """Measure the tree below process `pid` and the groups that it is in. Blocks.

    `counts_processes`: the sandbox's processes are processes of this machine. `own_network`: its first process has
    a network of its own, whose interfaces count.
    """
    directories = list(dict.fromkeys(groups))
    tree = _tree(pid) if pid is not None else None
    received, sent = _network(pid) if pid is not None and own_network else (None, None)
    counted = _first(directories, ("pids.current",))
    if counted is None and tree is not None:
        counted = tree[1]
    usage_us = next(filter(None, (_keyed(Path(group, "cpu.stat"), "usage_usec") for group in directories)), None)
    return Metrics(
        taken_at=time.time(),
        cpu_s=usage_us / 1e6 if usage_us is not None else None if tree is None else tree[0],
        memory_bytes=_first(directories, _MEMORY),
        memory_peak_bytes=_first(directories, _MEMORY_PEAK),
        processes=counted if counts_processes else None,
        processes_peak=_first(directories, ("pids.peak",)) if counts_processes else None,
        network_received_bytes=received,
        network_sent_bytes=sent,
    )


def with_limits(metrics: Metrics, resources: Resources, unenforced: Iterable[Unenforced]) -> Metrics:
    """The same, with the limits that hold."""
    missing = {each.what for each in unenforced}
    return replace(
        metrics,
        cpu_limit=None if Capability.LIMIT_CPU in missing else resources.cpus,
        memory_limit_bytes=None if Capability.LIMIT_MEMORY in missing else resources.memory_bytes,
        disk_limit_bytes=None if Capability.LIMIT_DISK in missing else resources.disk_bytes,
        processes_limit=None if Capability.LIMIT_PIDS in missing else resources.pids,
    )


def _first(groups: Iterable[str], names: tuple[str, ...]) -> int | None:
    """The number in the first of these files that is in one of the groups."""
    for path in (Path(group, name) for group in groups for name in names):
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            continue
    return None


def _keyed(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{key} ")]
    return int(found[0]) if found and found[0].isdigit() else None


def _tree(pid: int) -> tuple[float, int] | None:
    """Processor time and number of threads of a process and all below it; of those that ended, what parents saw."""
    ticks, threads, pending, seen = 0, 0, [pid], 0
    while pending:
        process = pending.pop()
        seen += 1
        fields = _stat(process)
        if (fields is None and process == pid) or seen > MAX_PROCESSES:
            return None
        if fields is not None:
            ticks += sum(map(int, fields[11:15]))
            threads += int(fields[17])
            pending += _children(process)
    return ticks / os.sysconf("SC_CLK_TCK"), threads


def _stat(pid: int) -> list[str] | None:
    """The fields of `stat` after the name."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # it has ended meanwhile
    return found


def _network(pid: int) -> tuple[int | None, int | None]:
    """Bytes received and sent by the interfaces that the process sees, without the loopback."""
    try:
        lines = (PROC / str(pid) / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return None, None
    counts = [line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() != "lo"]
    return sum(int(each[0]) for each in counts), sum(int(each[8]) for each in counts)
