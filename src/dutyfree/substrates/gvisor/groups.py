"""Resource limits by control groups, versions 1 and 2. They apply to gVisor's processes, which run the sandbox."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dutyfree.model import Capability, Resources, Unenforced, Usage
from dutyfree.substrates import hierarchies
from dutyfree.substrates.os_errors import wrap_os_errors

PARENT: Final = "dutyfree-gvisor"
CONTROLLERS: Final = ("memory", "cpu")
_EXIT_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.002

ONE_LIMIT_FOR_ALL: Final = "gVisor has one memory limit for the whole sandbox: exceeding it ends the sandbox"
NOT_COUNTED: Final = "gVisor does not limit the number of processes in a sandbox"


@dataclass(frozen=True, slots=True)
class Groups:
    """The directories in which control groups can be made, by controller."""

    version: int = 0
    homes: dict[str, Path] = field(default_factory=dict)

    def parents(self, owner: str) -> list[Path]:
        """The groups that contain all groups of one owner."""
        return sorted({home / f"{PARENT}-{owner}" for home in self.homes.values()})

    def prepare(self, owner: str) -> None:
        """Make the owner's parent groups. Raises SubstrateFailed, CapacityError."""
        with wrap_os_errors("a control group could not be made"):
            for parent in self.parents(owner):
                parent.mkdir(exist_ok=True)
                if self.version == 2:
                    enabled = " ".join(f"+{name}" for name in self.homes)
                    (parent.parent / "cgroup.subtree_control").write_text(enabled)
                    (parent / "cgroup.subtree_control").write_text(enabled)

    def of(self, owner: str, number: int, resources: Resources) -> list[Path]:
        """The groups of one sandbox: only those whose controllers limit something in `resources`."""
        asked = [self.homes[name] for name in plan(self.version, resources) if name in self.homes]
        return sorted({home / f"{PARENT}-{owner}" / str(number) for home in asked})

    def make(self, owner: str, number: int, resources: Resources) -> None:
        """Make the groups of one sandbox, and set their limits. Raises SubstrateFailed, CapacityError."""
        with wrap_os_errors("a control group could not be made"):
            for group in self.of(owner, number, resources):
                group.mkdir(exist_ok=True)
            for name, settings in plan(self.version, resources).items():
                for file, value in settings if name in self.homes else ():
                    (self.homes[name] / f"{PARENT}-{owner}" / str(number) / file).write_text(value)

    def unenforced(self, resources: Resources) -> tuple[Unenforced, ...]:
        """The limits in `resources` that gVisor cannot enforce on this host."""
        found = []
        if resources.memory_bytes is not None:
            held = "memory" in self.homes
            reason = ONE_LIMIT_FOR_ALL if held else "no control group for memory can be made here"
            found.append(Unenforced(Capability.LIMIT_MEMORY, reason))
        if resources.pids is not None:
            found.append(Unenforced(Capability.LIMIT_PIDS, NOT_COUNTED))
        if resources.cpus is not None and "cpu" not in self.homes:
            found.append(Unenforced(Capability.LIMIT_CPU, "no control group for cpu can be made here"))
        return tuple(found)


def find() -> Groups:
    """Find the mounted hierarchies in which this process may make groups."""
    found = hierarchies.find()
    return Groups(found.version, {name: Path(found.homes[name]) for name in CONTROLLERS if name in found.homes})


def plan(version: int, resources: Resources) -> dict[str, list[tuple[str, str]]]:
    """The files of a group and their values, by controller."""
    found = {name: hierarchies.settings(version, name, resources, swap=False) for name in CONTROLLERS}
    return {name: files for name, files in found.items() if files}


def usage(groups: list[Path]) -> Usage | None:
    """What the processes in a sandbox's groups take; None where none of the groups counts memory."""
    files = [group / hierarchies.memory_file(version) for group in groups for version in (1, 2)]
    counted = (hierarchies.GroupCounters(memory=str(file)).memory_bytes() for file in files)
    return next((Usage(each_bytes) for each_bytes in counted if each_bytes is not None), None)


def remove(group: Path) -> None:
    """Remove a group and the groups in it, if it exists. Blocks, up to 2 s, while processes in it are dying."""
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    for inner, _, _ in os.walk(group, topdown=False):
        while not _removed(Path(inner)) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
