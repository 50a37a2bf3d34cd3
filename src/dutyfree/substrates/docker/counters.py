"""Reads a container's control groups, if the engine runs on this machine: its memory, and which limits it hit."""

from __future__ import annotations

from pathlib import Path

from dutyfree.substrates.hierarchies import GroupCounters, groups_in, memory_file, mount_points


def watch(container: str, pid: int) -> GroupCounters | None:
    """The counters of the container whose first process is `pid`; None if `pid` is not the container's on this host."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    return find(container, groups, mounts)


def find(container: str, groups: str, mounts: str) -> GroupCounters | None:
    """The same, from the texts of the process's `cgroup` and of our own `mountinfo`."""
    if container not in groups:
        return None
    points = mount_points(mounts)
    places = {name: points[name] + path for name, path in groups_in(groups).items() if name in points}
    memory, pids, unified = places.get("memory"), places.get("pids"), places.get("")
    if memory or pids or unified is None:
        return GroupCounters(
            memory and f"{memory}/memory.oom_control",
            pids and f"{pids}/pids.events",
            memory and f"{memory}/{memory_file(1)}",
        )
    return GroupCounters(f"{unified}/memory.events", f"{unified}/pids.events", f"{unified}/{memory_file(2)}")
