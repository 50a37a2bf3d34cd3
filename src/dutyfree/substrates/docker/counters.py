"""What a container ran into, from its control groups, where the engine runs on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.guest import LimitCounters
from dutyfree.substrates.cell.cgroups import read_counter

_WANTED: Final = ("memory", "pids")


@dataclass(frozen=True, slots=True)
class ContainerCounters:
    """The kernel's files; absent where there is none."""

    oom: str | None
    pids: str | None

    def counters(self) -> LimitCounters:
        """As `LimitWatch` promises."""
        return LimitCounters(read_counter(self.oom, "oom_kill"), read_counter(self.pids, "max"))


def watch(container: str, pid: int) -> ContainerCounters | None:
    """The counters of the container whose first process is `pid`. None if that is no process of it, seen from here."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    return find(container, groups, mounts)


def find(container: str, groups: str, mounts: str) -> ContainerCounters | None:
    """The same from the text of the process's `cgroup` and of our own `mountinfo`."""
    if container not in groups:
        return None
    points = _mount_points(mounts)
    places: dict[str, str] = {}
    for line in groups.splitlines():
        _number, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in points:
                places[name] = points[name] + path
    unified = places.get("")
    v1 = {name: places[name] for name in _WANTED if name in places}
    if v1 or unified is None:
        oom, pids = v1.get("memory"), v1.get("pids")
        return ContainerCounters(oom and f"{oom}/memory.oom_control", pids and f"{pids}/pids.events")
    return ContainerCounters(f"{unified}/memory.events", f"{unified}/pids.events")


def _mount_points(mounts: str) -> dict[str, str]:
    """Controller, or "" for the unified hierarchy, to where it is mounted."""
    points: dict[str, str] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _source, options = after.split(" ", 2)
        point = before.split(" ")[4]
        if kind == "cgroup2":
            points.setdefault("", point)
        elif kind == "cgroup":
            for option in options.split(","):
                if option in _WANTED:
                    points.setdefault(option, point)
    return points
