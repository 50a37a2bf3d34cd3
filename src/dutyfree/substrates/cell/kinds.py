"""What cells of one kind have in common: found once, and not at each creation."""

from __future__ import annotations

from typing import Final

from dutyfree.model import Capability, SandboxSpec, Unenforced, Writes
from dutyfree.substrates.cell import cgroups, plan
from dutyfree.substrates.cell.caches import CacheLower
from dutyfree.substrates.cell.disk import DiskTemplates
from dutyfree.substrates.cell.operations import encode
from dutyfree.substrates.cell.purity import Condition
from dutyfree.substrates.cell.setting import Base, Setting
from dutyfree.substrates.sources import Source
from dutyfree.values import dataclass

MAX_KINDS: Final = 256


@dataclass(slots=True)
class CellKind:
    """Cells with the same base, limits, network, hostname, mounts and versions of caches."""

    plan: bytes
    """The part of their plans that is the same for all of them, encoded."""
    groups: tuple[cgroups.GroupStep, ...]
    can_have_own_ids: bool
    unenforced: tuple[Unenforced, ...]
    """What all of them lack."""
    fresh: Condition | None = None
    """The condition of a new cell, read from the first one; None before."""


class CellKinds:
    """The kinds of cells that were made lately."""

    def __init__(self, setting: Setting, disks: DiskTemplates) -> None:
        self._setting = setting
        self._disks = disks
        self._gaps = tuple(setting.gaps)
        self._known: dict[tuple[object, ...], CellKind] = {}

    def find(
        self, spec: SandboxSpec, base: Base, sources: tuple[Source, ...], caches: tuple[CacheLower, ...]
    ) -> CellKind:
        """The kind of a cell over `base`, with these sources of its mounts and versions of its caches."""
        shown = (spec.mounts, sources, spec.caches, caches)
        key = (base, spec.network, spec.writes, spec.resources, spec.hostname, shown)
        found = self._known.get(key)
        if found is None:
            if len(self._known) == MAX_KINDS:
                self._known.clear()
            setting = self._setting
            found = self._known[key] = CellKind(
                encode(plan.common_plan(setting, spec, base, sources, caches)),
                cgroups.cell_steps(setting.cgroups, setting.owner, spec.resources),
                plan.can_have_own_ids(setting, spec, base, caches),
                self._unenforced(spec, base),
            )
        return found

    def _unenforced(self, spec: SandboxSpec, base: Base) -> tuple[Unenforced, ...]:
        found = cgroups.unenforced(self._setting.cgroups, spec.resources)
        found += [gap for gap in self._gaps if gap.what is not Capability.HOST_FILES or base.over_host]
        if spec.writes is Writes.DISK and spec.resources.disk_bytes is not None:
            missing = self._disks.missing
            found += [Unenforced(Capability.LIMIT_DISK, missing)] if missing else []
        return tuple(found)
