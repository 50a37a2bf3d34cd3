"""What plans of cells are made from: the facts that all cells of one host process share, and what one stands on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from dutyfree.images.ownership import SUBORDINATE_IDS
from dutyfree.model import Capability, Unenforced
from dutyfree.substrates.cell.hostroot import HostRoot
from dutyfree.substrates.cell.parts import Showing, is_below, is_open
from dutyfree.substrates.hierarchies import Cgroups

NO_TRANSLATION = "mounts cannot translate ids here (on tmpfs from Linux 6.3 on): cells share one range"
NAMED_PARTS = 4
"""How many parts that are not as they should be are named one by one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all cells of one host process have in common."""

    owner: str
    host: HostRoot
    cgroups: Cgroups
    rootless: bool
    state_directory: str
    """Of this owner alone, small, gone with it."""
    disk_directory: str
    """Where upper directories on disk are made; of this owner alone."""
    layers_directory: str
    """Of the image store."""
    layers_inside_host: bool = False
    """Whether the image store lies in a file system that is part of the host's root; no overlay can be made of both."""
    disk_inside_host: bool = False
    """The same of the directory for uppers on disk."""
    one_file_system: bool = True
    """Whether all files of a cell have one device number, and `stat` and `readdir` name the same inode."""
    own_ids: bool = False
    """Whether each cell can have a range of ids of its own, with mounts that translate."""
    untranslated: frozenset[str] = frozenset()
    """Directories of the spawner's root, with layers or uppers in them, that cannot be mounted so."""
    proc_is_masked: bool = False
    """Whether the kernel refuses a cell a /proc of its own, because parts of the host's are masked."""
    proc_is_read_only: bool = False
    """Whether a cell could change settings of the machine below /proc/sys, because its root has the host root's id."""

    @property
    def root_id(self) -> int:
        """The id, as the spawner sees it, that a cell's root user stands for."""
        return 0 if self.rootless else SUBORDINATE_IDS

    @property
    def disk_mount(self) -> str:
        """What the spawner has of the disk for uppers and for copies of layers."""
        return str(PurePosixPath(self.disk_directory).parent)

    @property
    def gaps(self) -> list[Unenforced]:
        """What cells cannot do on this host, whatever is asked of them."""
        found = []
        if not self.own_ids:
            reason = "an ordinary user has no other ids to give" if self.rootless else NO_TRANSLATION
            found.append(Unenforced(Capability.OWN_IDS, reason))
        if self.proc_is_masked:
            reason = "parts of /proc are masked here, so that cells have no /proc of their own"
            found.append(Unenforced(Capability.KILL_TREE, reason))
        shown = [f"{part.path}: {part.reason}" for part in self.host.as_it_is]
        for what, names in (("read-only", shown), ("hidden", self._unseen)):
            if names:
                more = [f"{len(names) - NAMED_PARTS} more"] if len(names) > NAMED_PARTS else []
                found.append(Unenforced(Capability.HOST_FILES, f"{what}: {'; '.join(names[:NAMED_PARTS] + more)}"))
        return found

    @property
    def _unseen(self) -> list[str]:
        """Mounts of the host's installation that no part shows, nor a copy."""
        exact = {*(part.path for part in self.host.parts), *(path for path, _mode, _owner in self.host.copies)}
        whole = [part.path for part in self.host.as_it_is]
        return [path for path in self.host.mounted if path not in exact and not is_below(path, whole)]

    @property
    def hidden_directories(self) -> list[tuple[str, int]]:
        """What every cell has for itself instead of what the host has there, with modes."""
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
        """The masked files that the mask layer hides. Ordinary users may make the mark for a file that is not there."""
        if not self.rootless:
            return list(self.host.masked_files)
        overlaid = [part.path for part in self.host.overlaid]
        directories = self.open_directories
        seen = [path for path in self.host.masked_files if any(path.startswith(f"{each}/") for each in overlaid)]
        return [path for path in seen if path.rpartition("/")[0] in directories]

    @property
    def open_directories(self) -> dict[str, int]:
        """Those that the mask layer repeats and everyone may look into, with modes; ordinary users make no others."""
        found: dict[str, int] = {}
        for path, mode in self.host.repeated:
            parent = path.rpartition("/")[0]
            if is_open(mode) and (parent == "" or parent in found):
                found[path] = mode
        return found

    def is_covered(self, path: str) -> bool:
        """Whether a path lies in a part of the host in which the mask layer does not take part: one that is shown as it
        is or, since the attributes for masks are not for ordinary users, any part of a rootless cell."""
        unmasked = {Showing.READ_ONLY, *([Showing.OVERLAID] if self.rootless else [])}
        return any(path.startswith(f"{part.path}/") for part in self.host.parts if part.showing in unmasked)

    @property
    def inner_roots(self) -> tuple[str, ...]:
        """Directories of the host's root that have to be overlaid by themselves."""
        masks = (path for path, _mode in self.mounted_masks)
        return (*(part.path for part in self.host.overlaid), *masks)


@dataclass(frozen=True, slots=True)
class Lower:
    """A layer under a cell: a directory of the spawner's root."""

    path: str
    mount: str = ""
    """The directory that it is in and that is mounted in the spawner's root."""
    inner: frozenset[tuple[str, int]] = frozenset()
    """Those of `Setting.inner_roots` that are directories in it, with their modes."""
    mode: int = 0o755
    """Of its root, which is that of the cell's root if it is the topmost."""
    inside_host: bool = False
    """Whether it lies in a file system that is part of the host's root."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a cell's own files lie over, topmost first."""

    lowers: tuple[Lower, ...] = ()
    over_host: bool = True

    def directories(self, inner: str = "") -> list[str]:
        """The layers that have a directory `inner`."""
        return [lower.path + inner for lower in self.lowers if not inner or inner in dict(lower.inner)]

    def mode(self, inner: str, otherwise: int) -> int:
        """That of a directory in the topmost layer that has it, and `otherwise` if none has."""
        modes = [mode for lower in self.lowers for path, mode in lower.inner if path == inner]
        return modes[0] if modes else otherwise


def parents(path: str) -> list[str]:
    """The directories that lead to it, the topmost first, without `/`."""
    return [str(parent) for parent in reversed(PurePosixPath(path).parents) if str(parent) != "/"]
