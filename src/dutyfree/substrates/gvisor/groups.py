"""Limits by control groups, version 1 and 2, on gVisor's own processes: they are what a sandbox is on the host."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Capability, Resources, Unenforced
from dutyfree.substrates import hierarchies

PARENT: Final = "dutyfree-gvisor"
CONTROLLERS: Final = ("memory", "cpu")
_DEATHS_S: Final = 2.0
_POLL_S: Final = 0.002

ONE_LIMIT_FOR_ALL: Final = "gVisor's memory has one limit as a whole: going past it ends the sandbox, not the command"
NOT_COUNTED: Final = "gVisor does not limit how many processes run in it"


@dataclass(frozen=True, slots=True)
class Groups:
    """Where control groups can be made: controller to directory."""

    version: int = 0
    homes: dict[str, Path] = field(default_factory=dict)

    def parents(self, owner: str) -> list[Path]:
        """The groups in which all groups of one owner are."""
        return sorted({home / f"{PARENT}-{owner}" for home in self.homes.values()})

    def prepare(self, owner: str) -> None:
        """Make them. Raises SubstrateFailed."""
        with _wrap_os_errors():
            for parent in self.parents(owner):
                parent.mkdir(exist_ok=True)
                if self.version == 2:
                    enabled = " ".join(f"+{name}" for name in self.homes)
                    (parent.parent / "cgroup.subtree_control").write_text(enabled)
                    (parent / "cgroup.subtree_control").write_text(enabled)

    def of(self, owner: str, number: int, resources: Resources) -> list[Path]:
        """The groups that hold one sandbox to `resources`, only those that something is asked of."""
        asked = [self.homes[name] for name in plan(self.version, resources) if name in self.homes]
        return sorted({home / f"{PARENT}-{owner}" / str(number) for home in asked})

    def make(self, owner: str, number: int, resources: Resources) -> None:
        """Make them. Raises SubstrateFailed."""
        with _wrap_os_errors():
            for group in self.of(owner, number, resources):
                group.mkdir(exist_ok=True)
            for name, settings in plan(self.version, resources).items():
                for file, value in settings if name in self.homes else ():
                    (self.homes[name] / f"{PARENT}-{owner}" / str(number) / file).write_text(value)

    def unenforced(self, resources: Resources) -> tuple[Unenforced, ...]:
        """What `resources` asks for and gVisor cannot give here."""
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
    """Look at the hierarchies that are mounted, and at what this process may do in them."""
    found = hierarchies.find()
    return Groups(found.version, {name: Path(found.homes[name]) for name in CONTROLLERS if name in found.homes})


def plan(version: int, resources: Resources) -> dict[str, list[tuple[str, str]]]:
    """Controller to the files of a group and what is written to them."""
    found = {name: hierarchies.settings(version, name, resources, swap=False) for name in CONTROLLERS}
    return {name: files for name, files in found.items() if files}


def remove(group: Path) -> None:
    """Remove a group, and those in it; does nothing where there is none. Blocks while processes in it are dying."""
    deadline_s = time.monotonic() + _DEATHS_S
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


@contextlib.contextmanager
def _wrap_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SubstrateFailed(f"no control group could be made: {error}") from None
