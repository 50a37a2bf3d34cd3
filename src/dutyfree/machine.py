"""Facts of this machine that numbers depend on, read from the kernel's own files. Pure reading: nothing is tried."""

from __future__ import annotations

import os
import platform
from pathlib import Path

UNKNOWN = "unknown"


def read(path: str) -> str | None:
    """The text of one of the kernel's files, or None where it is not to be had."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def cpu() -> str:
    """The processor's own name for itself."""
    for line in (read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Processor", "cpu model") and value.strip():
            return " ".join(value.split())
    return platform.processor() or UNKNOWN


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int | None:
    """All of the machine's memory."""
    kib = meminfo_kib("MemTotal")
    return None if kib is None else kib * 1024


def meminfo_kib(name: str) -> int | None:
    """One line of /proc/meminfo."""
    for line in (read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name and value.split()[:1] and value.split()[0].isdecimal():
            return int(value.split()[0])
    return None


def cgroups() -> str:
    """Version and controllers of the hierarchy, in words."""
    controllers = read("/sys/fs/cgroup/cgroup.controllers")
    if controllers is not None:
        return f"v2, controllers: {', '.join(controllers.split()) or 'none'}"
    mounts = [line.split() for line in (read("/proc/self/mounts") or "").splitlines()]
    options = {option for mount in mounts if mount[2:3] == ["cgroup"] for option in mount[3].split(",")}
    found = [name for name in ("memory", "cpu", "pids") if name in options]
    return f"v1, controllers: {', '.join(found) or 'none'}" if options else "not mounted"


def file_system(path: str | os.PathLike[str]) -> str:
    """The kind of file system that `path` is on, or will be once it is made."""
    place = Path(path).absolute()
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110  Path's own raises where one may not look
        place = place.parent
    device = place.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (read("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            return after.split()[0]
    return UNKNOWN
