"""Limits by cgroup, version 1 and 2: finding the hierarchies, planning a cell's groups, reading what was hit."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from dutyfree.model import Capability, Resources, Unenforced
from dutyfree.substrates.cell.operations import Plan, Verb, op

CONTROLLERS = ("memory", "pids", "cpu")
CAPABILITIES = {
    "memory": Capability.LIMIT_MEMORY,
    "pids": Capability.LIMIT_PIDS,
    "cpu": Capability.LIMIT_CPU,
}
CPU_PERIOD_US = 100_000
PARENT = "dutyfree"


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where this process may make cgroups. `homes` maps a controller to a directory; on v2 all to the same one."""

    version: int
    homes: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Controllers that cannot be used here, each with the reason."""
    swap: bool = False
    """Whether the machine swaps, so that a memory limit has to name swap, too."""

    def directories(self) -> list[str]:
        """The distinct directories below which groups are made."""
        return sorted(set(self.homes.values()))


def find() -> Cgroups:
    """Look at the mounted hierarchies and at what this process may do in them."""
    mounts = _mounts()
    own = _own_groups()
    v1 = {name: mounts[name] for name in CONTROLLERS if name in mounts}
    if v1:
        return _find_v1(v1, own)
    if "" in mounts:
        return _find_v2(mounts[""], own.get("", "/"))
    return Cgroups(0, missing=dict.fromkeys(CONTROLLERS, "no cgroup file system is mounted"))


def _mounts() -> dict[str, str]:
    """Controller (or "" for the unified hierarchy) to mount point."""
    found: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
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


def _own_groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
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
    return Cgroups(1, homes, missing, swap)


def _find_v2(mount: str, own: str) -> Cgroups:
    """Root uses the top of the hierarchy; an ordinary user the highest group that was delegated to it."""
    candidates = [mount] if os.geteuid() == 0 else [mount + str(path).rstrip("/") for path in _ancestors(own)]
    for home in candidates:
        if not (os.access(home, os.W_OK) and os.access(f"{home}/cgroup.procs", os.W_OK)):
            continue
        usable = _usable(Path(home))
        absent = [name for name in CONTROLLERS if name not in usable]
        missing = {name: f"the {name} controller is not enabled in {home}" for name in absent}
        return Cgroups(2, {name: home for name in CONTROLLERS if name in usable}, missing, _swaps())
    return Cgroups(2, missing=dict.fromkeys(CONTROLLERS, "no cgroup was delegated to this user"))


def _usable(home: Path) -> list[str]:
    """The controllers that groups below `home` can have: outside of the root, processes and controllers do not mix."""
    available = (home / "cgroup.controllers").read_text().split()
    is_root_or_empty = not (home / "cgroup.type").exists() or not (home / "cgroup.procs").read_text().strip()
    return available if is_root_or_empty else (home / "cgroup.subtree_control").read_text().split()


def _swaps() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def _ancestors(group: str) -> list[Path]:
    path = Path(group)
    return [*reversed(path.parents), path]


def unenforced(cgroups: Cgroups, resources: Resources) -> list[Unenforced]:
    """The limits that `resources` asks for and that these cgroups cannot give."""
    asked = {"memory": resources.memory_bytes, "pids": resources.pids, "cpu": resources.cpus}
    return [
        Unenforced(CAPABILITIES[name], cgroups.missing.get(name, "no cgroup controller"))
        for name, value in asked.items()
        if value is not None and name not in cgroups.homes
    ]


def owner_plan(cgroups: Cgroups, owner: str) -> Plan:
    """The groups that hold all cells of one host process; made once."""
    plan: Plan = []
    for home in cgroups.directories():
        parent = f"{home}/{PARENT}-{owner}"
        if cgroups.version == 2:
            enable = " ".join(f"+{name}" for name in cgroups.homes)
            plan += [
                op(Verb.SET, f"{home}/cgroup.subtree_control", enable),
                op(Verb.CGROUP, parent),
                op(Verb.SET, f"{parent}/cgroup.subtree_control", enable),
            ]
        else:
            plan.append(op(Verb.CGROUP, parent))
    return plan


def cell_plan(cgroups: Cgroups, owner: str, cell: int, resources: Resources) -> Plan:
    """The groups that hold one cell to `resources`; only those that something is asked of."""
    settings = _settings_v2 if cgroups.version == 2 else _settings_v1
    files = {name: settings(name, resources, cgroups.swap) for name in cgroups.homes}
    used = {name: _group(cgroups, owner, cell, name) for name in cgroups.homes if files[name]}
    groups = sorted(set(used.values()))
    plan: Plan = [op(Verb.CGROUP, path) for path in groups]
    plan += [op(Verb.SET, f"{used[name]}/{file}", value) for name in used for file, value in files[name]]
    if cgroups.version == 2:
        return plan + [op(Verb.INTO, path) for path in groups]
    return plan + [op(Verb.JOIN, f"{path}/tasks") for path in groups]


def _group(cgroups: Cgroups, owner: str, cell: int, controller: str) -> str:
    return f"{cgroups.homes[controller]}/{PARENT}-{owner}/{cell}"


def freezer(cgroups: Cgroups, owner: str, cell: int) -> str | None:
    """The group of a cell in which all its processes can be frozen; None where there is none: version 1 has no such."""
    if cgroups.version != 2 or not cgroups.homes:
        return None
    return _group(cgroups, owner, cell, next(iter(cgroups.homes)))


@dataclass(frozen=True, slots=True)
class CellCounters:
    """The files in which the kernel counts what a cell ran into; absent where it is not limited."""

    oom: str | None
    pids: str | None


def counters(cgroups: Cgroups, owner: str, cell: int) -> CellCounters:
    """Where the counters of a cell are."""
    oom_file = "memory.events" if cgroups.version == 2 else "memory.oom_control"
    return CellCounters(
        oom=f"{_group(cgroups, owner, cell, 'memory')}/{oom_file}" if "memory" in cgroups.homes else None,
        pids=f"{_group(cgroups, owner, cell, 'pids')}/pids.events" if "pids" in cgroups.homes else None,
    )


def _settings_v1(controller: str, resources: Resources, swap: bool) -> list[tuple[str, str]]:
    if controller == "memory" and resources.memory_bytes is not None:
        names = ["memory.limit_in_bytes", *(["memory.memsw.limit_in_bytes"] if swap else [])]
        return [(name, str(resources.memory_bytes)) for name in names]
    if controller == "pids" and resources.pids is not None:
        return [("pids.max", str(resources.pids))]
    if controller == "cpu" and resources.cpus is not None:
        quota = str(max(1000, round(resources.cpus * CPU_PERIOD_US)))
        return [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", quota)]
    return []


def _settings_v2(controller: str, resources: Resources, swap: bool) -> list[tuple[str, str]]:
    if controller == "memory" and resources.memory_bytes is not None:
        return [("memory.max", str(resources.memory_bytes)), *([("memory.swap.max", "0")] if swap else [])]
    if controller == "pids" and resources.pids is not None:
        return [("pids.max", str(resources.pids))]
    if controller == "cpu" and resources.cpus is not None:
        return [("cpu.max", f"{max(1000, round(resources.cpus * CPU_PERIOD_US))} {CPU_PERIOD_US}")]
    return []


def read_counter(path: str | None, key: str) -> int:
    """The number behind `key` in a flat keyed file; 0 where there is none (the cell may be gone already)."""
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
