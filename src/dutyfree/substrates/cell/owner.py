"""The owner of cells: a claim, and the directories and cgroups that are named after it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dutyfree import claims
from dutyfree.errors import SubstrateUnavailable
from dutyfree.places import state_directory
from dutyfree.substrates.cell.cgroups import PARENT
from dutyfree.substrates.cell.freezer import thaw_all
from dutyfree.substrates.cell.ids import IdRanges
from dutyfree.substrates.hierarchies import Cgroups
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """One host process's cells. `lock_fds` are inherited by the spawner, so that the claim outlives us just as long."""

    claimed: claims.Claim
    disk_directory: Path
    ids: IdRanges

    @property
    def name(self) -> str:
        """The claim's name, which cgroups and directories are named after."""
        return self.claimed.name

    @property
    def state_directory(self) -> Path:
        """The directory for small files, in memory."""
        return self.claimed.directory

    @property
    def lock_fds(self) -> tuple[int, int]:
        """What keeps the claim and the ranges of ids."""
        return self.claimed.lock_fd, self.ids.lock_fd

    def release(self, cgroups: Cgroups) -> None:
        """Give the claim up and remove what a spawner that was killed has left; it has gone already."""
        if self.claimed.ours:
            _remove_cgroups(cgroups, self.name)
            claims.forget(self.disk_directory)
        self.ids.close()
        self.claimed.release()


def claim() -> Owner:
    """A new owner. Raises SubstrateUnavailable where no directory for it can be made."""
    claimed = claims.claim()
    disk = state_directory() / claimed.name
    try:
        disk.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not claims.is_ours(disk.parent):
            raise PermissionError(f"{disk.parent} is not a directory of this user's")
        disk.mkdir(mode=0o700)
        ids = IdRanges(claims.state_base() / "ids")
    except OSError as error:
        claimed.release()
        hint = "set DUTYFREE_STATE_DIR to a directory that you may write to"
        message = f"the directory for the state of cells cannot be made: {error}"
        raise SubstrateUnavailable(message, hint=hint) from error
    return Owner(claimed, disk, ids)


def sweep(cgroups: Cgroups) -> list[str]:
    """Remove what dead owners of this machine left behind; returns their names."""
    bases = [base for base in (state_directory(), claims.state_base()) if claims.is_ours(base)]
    names = {path.name for base in bases for path in claims.directories(base)}
    names |= {
        path.name.removeprefix(f"{PARENT}-")
        for home in cgroups.directories()
        for path in claims.directories(Path(home))
        if path.name.startswith(f"{PARENT}-")
    }
    dead = sorted(name for name in names if claims.is_dead(name))
    for name in dead:
        _remove_cgroups(cgroups, name)
        for base in bases:
            claims.forget(base / name)
    return dead


def _remove_cgroups(cgroups: Cgroups, owner: str) -> None:
    if cgroups.freezer is not None:
        thaw_all(Path(cgroups.freezer, f"{PARENT}-{owner}"))
    for home in cgroups.directories():
        for directory, _names, _files in os.walk(Path(home, f"{PARENT}-{owner}"), topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
