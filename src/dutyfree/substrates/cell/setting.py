"""The input of cells' plans: the facts that all cells of one host process share, and the layers below one cell."""

from __future__ import annotations

from pathlib import PurePosixPath

from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Capability, Unenforced
from dutyfree.substrates.cell.hostroot import HostRoot
from dutyfree.substrates.cell.parts import Showing, is_below, is_open
from dutyfree.substrates.hierarchies import Cgroups
from dutyfree.values import dataclass

NO_TRANSLATION = "mounts cannot translate ids on this machine (tmpfs can from Linux 6.3 on): cells share one range"
NAMED_PARTS = 4
"""How many restricted parts a message lists before "and N more"."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts that all cells of one host process share."""

    owner: str
    host: HostRoot
    cgroups: Cgroups
    rootless: bool
    state_directory: str
    """A directory of this owner alone, for small files; removed with the owner."""
    disk_directory: str
    """The directory of this owner alone for uppers on disk."""
    layers_directory: str
    """The layers' directory of the image store."""
    layers_inside_host: bool = False
    """Whether the image store is on a file system of the host's root: then one overlay cannot contain both."""
    disk_inside_host: bool = False
    """The same for `disk_directory`."""
    one_file_system: bool = True
    """Whether all files of a cell have one device number, and `stat` and `readdir` report the same inode."""
    own_ids: bool = False
    """Whether each cell can have its own range of ids, by id-mapped mounts."""
    untranslated: frozenset[str] = frozenset()
    """Directories of the spawner's root, with layers or uppers, that do not support id-mapped mounts."""
    proc_is_masked: bool = False
    """Whether the kernel refuses a new /proc to a cell, because parts of the host's /proc are masked."""
    proc_is_read_only: bool = False
    """Whether /proc/sys must be read-only: a cell whose root has the host root's id could change the machine."""

    @property
    def root_id(self) -> int:
        """The id of a cell's root user, as the spawner sees it."""
        return 0 if self.rootless else SUBORDINATE_IDS

    @property
    def disk_mount(self) -> str:
        """The directory in the spawner's root for uppers on disk and for copies of layers."""
        return str(PurePosixPath(self.disk_directory).parent)

    @property
    def gaps(self) -> list[Unenforced]:
        """The capabilities that cells lack on this host, whatever their spec."""
        found = []
        if not self.own_ids:
            reason = "an ordinary user has only one id for its cells" if self.rootless else NO_TRANSLATION
            found.append(Unenforced(Capability.OWN_IDS, reason))
        if self.proc_is_masked:
            reason = "parts of /proc are masked on this machine, so that cells cannot have their own /proc"
            found.append(Unenforced(Capability.KILL_TREE, reason))
        shown = [f"{part.path}: {part.reason}" for part in self.host.as_it_is]
        for what, names in (("read-only", shown), ("hidden", self._unseen)):
            if names:
                more = [f"{len(names) - NAMED_PARTS} more"] if len(names) > NAMED_PARTS else []
                found.append(Unenforced(Capability.HOST_FILES, f"{what}: {'; '.join(names[:NAMED_PARTS] + more)}"))
        return found

    @property
    def _unseen(self) -> list[str]:
        """The mounts of the host's installation that cells see neither as a part nor as a copy."""
        exact = {*(part.path for part in self.host.parts), *(path for path, _mode, _owner in self.host.copies)}
        whole = [part.path for part in self.host.as_it_is]
        return [path for path in self.host.mounted if path not in exact and not is_below(path, whole)]

    @property
    def hidden_directories(self) -> list[tuple[str, int]]:
        """The directories that every cell has empty instead of the host's, with modes."""
        return [*self.host.own, *((path, 0o755) for path in self.host.masked_directories)]

    @property
    def mounted_masks(self) -> list[tuple[str, int]]:
        """The hidden directories that the mask layer cannot hide, so that each cell covers them with a mount."""
        absent = self.host.absent
        return [(path, mode) for path, mode in self.hidden_directories if path not in absent and self.is_covered(path)]

    @property
    def mounted_file_masks(self) -> list[str]:
        """The same for files."""
        hidden = set(self.whited_out) if self.rootless else set()
        return [path for path in self.host.masked_files if self.is_covered(path) and path not in hidden]

    @property
    def whited_out(self) -> list[str]:
        """The masked files that the mask layer hides by whiteouts, which ordinary users may make too."""
        if not self.rootless:
            return list(self.host.masked_files)
        overlaid = [part.path for part in self.host.overlaid]
        directories = self.open_directories
        seen = [path for path in self.host.masked_files if any(path.startswith(f"{each}/") for each in overlaid)]
        return [path for path in seen if path.rpartition("/")[0] in directories]

    @property
    def open_directories(self) -> dict[str, int]:
        """The directories of the mask layer that every user may read, with modes. Ordinary users make only these."""
        found: dict[str, int] = {}
        for path, mode in self.host.repeated:
            parent = path.rpartition("/")[0]
            if is_open(mode) and (parent == "" or parent in found):
                found[path] = mode
        return found

    def is_covered(self, path: str) -> bool:
        """Whether a path is in a part without the mask layer: a part that is shown read-only, or any part of a rootless
        cell, because ordinary users cannot set the attributes for masks."""
        unmasked = {Showing.READ_ONLY, *([Showing.OVERLAID] if self.rootless else [])}
        return any(path.startswith(f"{part.path}/") for part in self.host.parts if part.showing in unmasked)

    @property
    def inner_roots(self) -> tuple[str, ...]:
        """The directories of the host's root that need separate overlays."""
        masks = (path for path, _mode in self.mounted_masks)
        return (*(part.path for part in self.host.overlaid), *masks)


@dataclass(frozen=True, slots=True)
class Lower:
    """A layer below a cell: a directory of the spawner's root."""

    path: str
    mount: str = ""
    """The mounted directory of the spawner's root that contains the layer."""
    inner: frozenset[tuple[str, int]] = frozenset()
    """The paths in `Setting.inner_roots` that are directories in this layer, with their modes."""
    mode: int = 0o755
    """The mode of the layer's root. The cell's root has the mode of the topmost layer."""
    inside_host: bool = False
    """Whether the layer is on a file system of the host's root."""


@dataclass(frozen=True, slots=True)
class Base:
    """The layers below a cell's own files, topmost first."""

    lowers: tuple[Lower, ...] = ()
    over_host: bool = True

    def directories(self, inner: str = "") -> list[str]:
        """The layers that have a directory `inner`."""
        return [lower.path + inner for lower in self.lowers if not inner or inner in dict(lower.inner)]

    def mode(self, inner: str, otherwise: int) -> int:
        """The mode of a directory in the topmost layer that has it; `otherwise` if no layer has it."""
        modes = [mode for lower in self.lowers for path, mode in lower.inner if path == inner]
        return modes[0] if modes else otherwise


def parents(path: str) -> list[str]:
    """The parent directories of a path, topmost first, without `/`."""
    return [str(parent) for parent in reversed(PurePosixPath(path).parents) if str(parent) != "/"]
