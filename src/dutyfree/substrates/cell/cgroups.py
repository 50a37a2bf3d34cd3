"""A cell's limits by cgroups: its groups as operations of the spawner, and the kernel's counters of limit hits."""

from __future__ import annotations

from collections.abc import Iterable

from dutyfree.model import Capability, Resources, Unenforced
from dutyfree.substrates.cell.operations import Operation, Plan, Verb, op
from dutyfree.substrates.hierarchies import Cgroups, GroupCounters, memory_file, settings
from dutyfree.values import dataclass

CAPABILITIES = {
    "memory": Capability.LIMIT_MEMORY,
    "pids": Capability.LIMIT_PIDS,
    "cpu": Capability.LIMIT_CPU,
}
PARENT = "dutyfree"


def unenforced(cgroups: Cgroups, resources: Resources) -> list[Unenforced]:
    """The limits in `resources` that these cgroups cannot enforce."""
    asked = {"memory": resources.memory_bytes, "pids": resources.pids, "cpu": resources.cpus}
    return [
        Unenforced(CAPABILITIES[name], cgroups.missing.get(name, "no cgroup controller"))
        for name, value in asked.items()
        if value is not None and name not in cgroups.homes
    ]


def owner_plan(cgroups: Cgroups, owner: str) -> Plan:
    """The groups that contain all cells of one host process; made once."""
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


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One operation on a group of each cell: the cell's number goes between `parent` and `file`."""

    verb: Verb
    parent: str
    file: str = ""
    value: tuple[str, ...] = ()


def cell_steps(cgroups: Cgroups, owner: str, resources: Resources) -> tuple[GroupStep, ...]:
    """The groups of each cell with these limits: only those whose controllers limit something in `resources`."""
    version, swap, sockets = cgroups.version, cgroups.swap, cgroups.sockets
    files = {name: settings(version, name, resources, swap=swap, sockets=sockets) for name in cgroups.homes}
    used = {name: _parent(cgroups, owner, name) for name in cgroups.homes if files[name]}
    parents = sorted(set(used.values()))
    steps = [GroupStep(Verb.CGROUP, parent) for parent in parents]
    steps += [GroupStep(Verb.SET, used[name], f"/{file}", (value,)) for name in used for file, value in files[name]]
    if cgroups.version == 2:
        return (*steps, *(GroupStep(Verb.INTO, parent) for parent in parents))
    return (*steps, *(GroupStep(Verb.JOIN, parent, "/tasks") for parent in parents))


def cell_plan(steps: Iterable[GroupStep], cell: int) -> Plan:
    """The groups of one cell."""
    return [Operation(step.verb, (f"{step.parent}{cell}{step.file}", *step.value)) for step in steps]


def _group(cgroups: Cgroups, owner: str, cell: int, controller: str) -> str:
    return f"{_parent(cgroups, owner, controller)}{cell}"


def _parent(cgroups: Cgroups, owner: str, controller: str) -> str:
    return f"{cgroups.homes[controller]}/{PARENT}-{owner}/"


def freezer(cgroups: Cgroups, owner: str, cell: int) -> str | None:
    """The cgroup that can freeze all processes of a cell; None with cgroup version 1."""
    if cgroups.version != 2 or not cgroups.homes:
        return None
    return _group(cgroups, owner, cell, next(iter(cgroups.homes)))


def pause_group(cgroups: Cgroups, owner: str, cell: int) -> str | None:
    """The group in which a cell is frozen when it is paused; None where no group can be frozen."""
    return None if cgroups.freezer is None else f"{cgroups.freezer}/{PARENT}-{owner}/{cell}"


def groups(cgroups: Cgroups, owner: str, cell: int) -> list[str]:
    """The groups that a cell with limits is in."""
    return [_group(cgroups, owner, cell, controller) for controller in cgroups.homes]


def counters(cgroups: Cgroups, owner: str, cell: int) -> GroupCounters:
    """The counters of a cell."""
    oom_file = "memory.events" if cgroups.version == 2 else "memory.oom_control"
    usage_file = memory_file(cgroups.version)
    return GroupCounters(
        memory=f"{_group(cgroups, owner, cell, 'memory')}/{usage_file}" if "memory" in cgroups.homes else None,
        oom=f"{_group(cgroups, owner, cell, 'memory')}/{oom_file}" if "memory" in cgroups.homes else None,
        pids=f"{_group(cgroups, owner, cell, 'pids')}/pids.events" if "pids" in cgroups.homes else None,
    )
