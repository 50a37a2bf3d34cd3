"""The machine's cgroup hierarchies, version 1 and 2: where they are, what we may do in them, what they count."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.guest import LimitCounters
from dutyfree.model import Resources

CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD_US = 100_000
ASIDE = "beside-dutyfree"
"""The group that the processes of a container go to, see `find`."""
MOVES = 10
_LEAST_QUOTA_US = 1000
_SOCKETS_V1 = "memory.kmem.tcp.limit_in_bytes"
_SOCKET_SHARE = 8
"""Version 1 counts the buffers of TCP and UDP sockets apart from all other memory: they may take an eighth of the limit
on top of it. That is enough for full buffers on dozens of connections, and little to take from others."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where this process may make cgroups. `homes` maps a controller to a directory; on v2 all to the same one."""

    version: int
    homes: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Controllers that cannot be used here, each with the reason."""
    swap: bool = False
    """Whether the machine swaps, so that a memory limit has to name swap, too."""
    sockets: bool = False
    """Whether socket buffers have a limit of their own (version 1; version 2 counts them as memory)."""

    def directories(self) -> list[str]:
        """The distinct directories below which groups are made."""
        return sorted(set(self.homes.values()))


def find(*, make_room: bool = False) -> Cgroups:
    """Look at the mounted hierarchies and at what this process may do in them.

    On version 2 a container's own group has processes in it, and so no groups with limits below it: with `make_room`
    they are moved into a group beside ours. They stay under all limits of the container.
    """
    mounts = mount_points(Path("/proc/self/mountinfo").read_bytes().decode("utf-8", "surrogateescape"))
    own = groups_in(Path("/proc/self/cgroup").read_text())
    v1 = {name: mounts[name] for name in CONTROLLERS if name in mounts}
    if v1:
        return _find_v1(v1, own)
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
                if option in CONTROLLERS:
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
    for name in CONTROLLERS:
        if name not in mounts:
            missing[name] = f"the {name} controller is not mounted"
            continue
        # Below our own group, so that whatever bounds us bounds our cells too.
        home = mounts[name] + own.get(name, "/").rstrip("/")
        home = home if Path(home).is_dir() else mounts[name]
        if os.access(home, os.W_OK):
            homes[name] = home
        else:
            missing[name] = f"no permission to make cgroups in {home}"
    swap = "memory" in homes and Path(homes["memory"], "memory.memsw.limit_in_bytes").exists() and _swaps()
    sockets = "memory" in homes and Path(homes["memory"], _SOCKETS_V1).exists()
    return Cgroups(1, homes, missing, swap, sockets)


def _find_v2(mount: str, own: str) -> Cgroups:
    """The highest group that this process may make groups in; for root, the top."""
    for home in [mount + str(path).rstrip("/") for path in _ancestors(own)]:
        if not (os.access(home, os.W_OK) and os.access(f"{home}/cgroup.procs", os.W_OK)):
            continue
        usable = _usable(Path(home))
        absent = [name for name in CONTROLLERS if name not in usable]
        missing = {name: f"the {name} controller is not enabled in {home}" for name in absent}
        return Cgroups(2, {name: home for name in CONTROLLERS if name in usable}, missing, _swaps())
    read_only = os.geteuid() == 0 and os.statvfs(mount).f_flag & os.ST_RDONLY
    reason = f"{mount} is read-only here" if read_only else "no cgroup was delegated to this user"
    return Cgroups(2, missing=dict.fromkeys(CONTROLLERS, reason))


def _usable(home: Path) -> list[str]:
    """The controllers that groups below `home` can have: outside of the root, processes and controllers do not mix."""
    available = (home / "cgroup.controllers").read_text().split()
    is_root_or_empty = not (home / "cgroup.type").exists() or not (home / "cgroup.procs").read_text().strip()
    return available if is_root_or_empty else (home / "cgroup.subtree_control").read_text().split()


def _move_aside(home: Path) -> None:
    """Out of a group that is not the root of the hierarchy. What cannot be moved stays."""
    if not (home / "cgroup.type").exists() or not os.access(home / "cgroup.procs", os.W_OK):
        return
    with contextlib.suppress(OSError):
        for _ in range(MOVES):
            pids = (home / "cgroup.procs").read_text().split()
            if not pids:
                return
            (home / ASIDE).mkdir(exist_ok=True)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (home / ASIDE / "cgroup.procs").write_text(pid)


def _swaps() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def _ancestors(group: str) -> list[Path]:
    path = Path(group)
    return [*reversed(path.parents), path]


def settings(
    version: int, controller: str, resources: Resources, *, swap: bool, sockets: bool = False
) -> list[tuple[str, str]]:
    """The files of a group, and what is written to them, that hold it to `resources`."""
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


@dataclass(frozen=True, slots=True)
class GroupCounters:
    """The files in which the kernel counts what a sandbox ran into; absent where it is not limited."""

    oom: str | None
    pids: str | None
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
        """As `LimitWatch` promises."""
        return LimitCounters(_read_counter(self.oom, "oom_kill"), _read_counter(self.pids, "max"))


def _read_counter(path: str | None, key: str) -> int:
    """The number behind `key` in a flat keyed file; 0 where there is none (the sandbox may be gone already)."""
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
