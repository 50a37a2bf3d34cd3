"""The machine's cgroup hierarchies, versions 1 and 2: their directories, our permissions, limits and counters."""

from __future__ import annotations

import contextlib
import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.model import Resources
from dutyfree.values import dataclass

if TYPE_CHECKING:
    from dutyfree.guest.limits import LimitCounters

CONTROLLERS = ("memory", "pids", "cpu")
FREEZER = "freezer"
CPU_PERIOD_US = 100_000
SIDE_GROUP = "beside-dutyfree"
"""The group to which the processes of a container are moved, see `find`."""
MAX_MOVE_ROUNDS = 10
_LEAST_QUOTA_US = 1000
_SOCKETS_V1 = "memory.kmem.tcp.limit_in_bytes"
_SOCKET_SHARE = 8
"""Version 1 counts the buffers of TCP and UDP sockets separately from other memory. They may take an eighth of the
limit in addition to it: enough for full buffers on dozens of connections, and little for the rest of the machine."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The directories in which this process may make cgroups."""

    version: int
    homes: dict[str, str] = field(default_factory=dict)
    """Controller to directory; with version 2, the same directory for all."""
    missing: dict[str, str] = field(default_factory=dict)
    """Controllers that cannot be used on this host, each with the reason."""
    swap: bool = False
    """Whether the machine has swap, so that a memory limit must limit swap as well."""
    sockets: bool = False
    """Whether socket buffers have a separate limit (version 1; version 2 counts them as memory)."""
    freezer: str | None = None
    """The directory in which groups that can be frozen are made; None where this process may make none."""

    def directories(self) -> list[str]:
        """The distinct directories in which groups are made."""
        return sorted({*self.homes.values(), *filter(None, [self.freezer])})


def find(*, make_room: bool = False) -> Cgroups:
    """Find the mounted hierarchies, and the directories in which this process may make groups.

    With version 2, a group with processes cannot have limited groups below it. A container's own group has processes,
    so `make_room` moves them to a group beside ours. They stay under all limits of the container.
    """
    mounts = mount_points(Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "surrogateescape"))
    own = groups_in(Path("/proc/self/cgroup").read_text())
    if any(name in mounts for name in CONTROLLERS):
        return _find_v1(mounts, own)
    if "" in mounts:
        home = own.get("", "/")
        if make_room and home == "/":
            _move_aside(Path(mounts[""]))
        return _find_v2(mounts[""], home)
    return Cgroups(0, missing=dict.fromkeys(CONTROLLERS, "no cgroup file system is mounted"))


def mount_points(mountinfo: str) -> dict[str, str]:
    """Controller (or "" for the unified hierarchy) to mount point, from the text of a process's `mountinfo`."""
    found: dict[str, str] = {}
    for line in filter(None, mountinfo.split("\n")):
        before, _, after = line.partition(" - ")
        kind, _source, options = after.split(" ", 2)
        point = before.split(" ")[4]
        if kind == "cgroup2":
            found.setdefault("", point)
        elif kind == "cgroup":
            for option in options.split(","):
                if option in CONTROLLERS or option == FREEZER:
                    found.setdefault(option, point)
    return found


def groups_in(text: str) -> dict[str, str]:
    """Controller (or "") to the group that a process is in, from the text of its `cgroup`."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _number, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    return groups


def _find_v1(mounts: dict[str, str], own: dict[str, str]) -> Cgroups:
    homes, missing = {}, {}
    for name in (*CONTROLLERS, FREEZER):
        if name not in mounts:
            missing[name] = f"the {name} controller is not mounted"
            continue
        # Below our own group, so that our own limits also apply to our cells.
        home = mounts[name] + own.get(name, "/").rstrip("/")
        home = home if Path(home).is_dir() else mounts[name]
        if os.access(home, os.W_OK):
            homes[name] = home
        else:
            missing[name] = f"no permission to make cgroups in {home}"
    swap = "memory" in homes and Path(homes["memory"], "memory.memsw.limit_in_bytes").exists() and _swaps()
    sockets = "memory" in homes and Path(homes["memory"], _SOCKETS_V1).exists()
    missing.pop(FREEZER, None)
    return Cgroups(1, homes, missing, swap, sockets, homes.pop(FREEZER, None))


def _find_v2(mount: str, own: str) -> Cgroups:
    """The highest group in which this process may make groups; for root, the root group."""
    for home in [mount + str(path).rstrip("/") for path in _ancestors(own)]:
        if not (os.access(home, os.W_OK) and os.access(f"{home}/cgroup.procs", os.W_OK)):
            continue
        usable = _usable(Path(home))
        absent = [name for name in CONTROLLERS if name not in usable]
        missing = {name: f"the {name} controller is not enabled in {home}" for name in absent}
        homes = {name: home for name in CONTROLLERS if name in usable}
        return Cgroups(2, homes, missing, _swaps(), freezer=home if homes else None)
    read_only = os.geteuid() == 0 and os.statvfs(mount).f_flag & os.ST_RDONLY
    reason = f"{mount} is read-only here" if read_only else "no cgroup was delegated to this user"
    return Cgroups(2, missing=dict.fromkeys(CONTROLLERS, reason))


def _usable(home: Path) -> list[str]:
    """The controllers for groups below `home`. Except in the root group, they need a `home` without processes."""
    available = (home / "cgroup.controllers").read_text().split()
    is_root_or_empty = not (home / "cgroup.type").exists() or not (home / "cgroup.procs").read_text().strip()
    return available if is_root_or_empty else (home / "cgroup.subtree_control").read_text().split()


def _move_aside(home: Path) -> None:
    """Move processes out of a group that is not the root of the hierarchy. Those that cannot be moved stay."""
    if not (home / "cgroup.type").exists() or not os.access(home / "cgroup.procs", os.W_OK):
        return
    with contextlib.suppress(OSError):
        for _ in range(MAX_MOVE_ROUNDS):
            pids = (home / "cgroup.procs").read_text().split()
            if not pids:
                return
            (home / SIDE_GROUP).mkdir(exist_ok=True)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (home / SIDE_GROUP / "cgroup.procs").write_text(pid)


def _swaps() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def _ancestors(group: str) -> list[Path]:
    path = Path(group)
    return [*reversed(path.parents), path]


def settings(
    version: int, controller: str, resources: Resources, *, swap: bool, sockets: bool = False
) -> list[tuple[str, str]]:
    """The files of a group, and their values, that limit it to `resources`."""
    if version == 2:
        return _settings_v2(controller, resources, swap)
    return _settings_v1(controller, resources, swap, sockets)


def _settings_v1(controller: str, resources: Resources, swap: bool, sockets: bool) -> list[tuple[str, str]]:
    if controller == "memory" and resources.memory_bytes is not None:
        names = ["memory.limit_in_bytes", *(["memory.memsw.limit_in_bytes"] if swap else [])]
        buffers = [(_SOCKETS_V1, str(resources.memory_bytes // _SOCKET_SHARE))] if sockets else []
        return [*((name, str(resources.memory_bytes)) for name in names), *buffers]
    if controller == "pids" and resources.pids is not None:
        return [("pids.max", str(resources.pids))]
    if controller == "cpu" and resources.cpus is not None:
        quota = str(max(_LEAST_QUOTA_US, round(resources.cpus * CPU_PERIOD_US)))
        return [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", quota)]
    return []


def _settings_v2(controller: str, resources: Resources, swap: bool) -> list[tuple[str, str]]:
    if controller == "memory" and resources.memory_bytes is not None:
        return [("memory.max", str(resources.memory_bytes)), *([("memory.swap.max", "0")] if swap else [])]
    if controller == "pids" and resources.pids is not None:
        return [("pids.max", str(resources.pids))]
    if controller == "cpu" and resources.cpus is not None:
        return [("cpu.max", f"{max(_LEAST_QUOTA_US, round(resources.cpus * CPU_PERIOD_US))} {CPU_PERIOD_US}")]
    return []


def memory_file(version: int) -> str:
    """The name of the file of a group that counts its memory."""
    return "memory.current" if version == 2 else "memory.usage_in_bytes"


@dataclass(frozen=True, slots=True)
class GroupCounters:
    """The kernel's files that count how often a sandbox hit a limit; None for a limit that it does not have."""

    oom: str | None = None
    pids: str | None = None
    memory: str | None = None

    def memory_bytes(self) -> int | None:
        """The memory that is charged to the sandbox now; None where it is not counted, or the sandbox is gone."""
        if self.memory is None:
            return None
        try:
            return int(Path(self.memory).read_text())
        except (OSError, ValueError):
            return None

    def counters(self) -> LimitCounters:
        """The current counters, as `LimitWatch` promises."""
        from dutyfree.guest.limits import LimitCounters  # what is told of limits needs no guest

        return LimitCounters(_read_counter(self.oom, "oom_kill"), _read_counter(self.pids, "max"))


def _read_counter(path: str | None, key: str) -> int:
    """The number after `key` in a flat keyed file; 0 if there is none (the sandbox may be gone already)."""
    if path is None:
        return 0
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0
