"""Who owns which cells: marks on the machine by which the left-overs of a killed process are told from live ones.

An owner is named after its process, the moment, and the machine's current boot. Its state directory holds a lock that
the host process and its spawner keep; when both are dead it is free, and whoever comes next removes what they left:
directories and cgroups of that very name, made by this machine, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import SubstrateFailed, SubstrateUnavailable
from dutyfree.images.store import state_directory
from dutyfree.removal import remove_tree
from dutyfree.substrates.cell.cgroups import PARENT, Cgroups

LOCK = "lock"
_NAME = re.compile(r"(\d+)-[0-9a-f]{6,16}-([0-9a-f]{12})")


def state_base() -> Path:
    """Where owners put their small, short-lived state."""
    if os.geteuid() == 0:
        return Path("/run/dutyfree")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime, "dutyfree")
    return Path(tempfile.gettempdir(), f"dutyfree-{os.geteuid()}")


@dataclass(frozen=True, slots=True)
class Owner:
    """One host process's claim. `lock_fd` is inherited by the spawner, so that the claim outlives us just as long."""

    name: str
    state_directory: Path
    disk_directory: Path
    lock_fd: int

    def release(self, cgroups: Cgroups) -> None:
        """Give the claim up and remove what a spawner that was killed has left; it has gone already."""
        _remove_cgroups(cgroups, self.name)
        for directory in (self.disk_directory, self.state_directory):
            _forget(directory)
        os.close(self.lock_fd)


def claim() -> Owner:
    """A new owner. Raises SubstrateUnavailable where no directory for it can be made."""
    name = f"{os.getpid()}-{time.monotonic_ns():x}-{_boot()}"
    state, disk = state_base() / name, state_directory() / name
    try:
        for base in (state.parent, disk.parent):
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(base):
                raise PermissionError(f"{base} is not a directory of this user's")
        state.mkdir(mode=0o700)
        lock_fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        disk.mkdir(mode=0o700)
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR and DUTYFREE_STATE_DIR to directories that you may write to"
        raise SubstrateUnavailable(f"no place for the state of cells: {error}", hint=hint) from error
    return Owner(name, state, disk, lock_fd)


def sweep(cgroups: Cgroups) -> list[str]:
    """Remove what dead owners of this machine left behind; returns their names."""
    bases = [base for base in (state_directory(), state_base()) if _is_ours(base)]
    names = {path.name for base in bases for path in _directories(base)}
    names |= {
        path.name.removeprefix(f"{PARENT}-")
        for home in cgroups.directories()
        for path in _directories(Path(home))
        if path.name.startswith(f"{PARENT}-")
    }
    dead = sorted(name for name in names if _is_dead(name))
    for name in dead:
        _remove_cgroups(cgroups, name)
        for base in bases:
            _forget(base / name)
    return dead


def _boot() -> str:
    """Tells this boot of this machine, and this process namespace, from all others that may share its directories."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]


def _is_ours(base: Path) -> bool:
    try:
        info = base.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def _directories(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _is_dead(name: str) -> bool:
    named = _NAME.fullmatch(name)
    if named is None or named[2] != _boot():
        return False  # not a name that we give, or not one that we can judge
    try:
        with (state_base() / name / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    # An owner that is just being born has no lock yet; its process tells.
    return not Path(f"/proc/{named[1]}").exists()


def _forget(directory: Path) -> None:
    """Remove it; what cannot be removed now is left to whoever comes next."""
    with contextlib.suppress(SubstrateFailed):
        remove_tree(directory)


def _remove_cgroups(cgroups: Cgroups, owner: str) -> None:
    for home in cgroups.directories():
        for directory, _names, _files in os.walk(Path(home, f"{PARENT}-{owner}"), topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
