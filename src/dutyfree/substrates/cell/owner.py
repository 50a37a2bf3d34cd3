"""Who owns which cells: marks on the machine by which the left-overs of a killed process are told from live ones.

Each owner has a directory with a lock in it. The host process and its spawner hold the lock; when both are dead it is
free, and whoever comes next removes what they left: directories and cgroups of that owner's name, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import SubstrateUnavailable
from dutyfree.substrates.cell.cgroups import PARENT, Cgroups

LOCK = "lock"
SETTLING_S = 5.0
"""How old an owner's directory must be before an unheld lock means death and not birth."""


def state_base() -> Path:
    """Where owners put their small, short-lived state."""
    if os.geteuid() == 0:
        return Path("/run/dutyfree")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime, "dutyfree")
    return Path(tempfile.gettempdir(), f"dutyfree-{os.geteuid()}")


def disk_base() -> Path:
    """Where upper directories on disk are kept; `DUTYFREE_STATE_DIR` moves it."""
    chosen = os.environ.get("DUTYFREE_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/dutyfree")
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser(), "dutyfree")


@dataclass(frozen=True, slots=True)
class Owner:
    """One host process's claim. `lock_fd` is inherited by the spawner, so that the claim outlives us just as long."""

    name: str
    state_directory: Path
    disk_directory: Path
    lock_fd: int

    def release(self) -> None:
        """Give the claim up and remove its directories; the spawner has gone already."""
        for directory in (self.state_directory, self.disk_directory):
            shutil.rmtree(directory, ignore_errors=True)
        os.close(self.lock_fd)


def claim() -> Owner:
    """A new owner. Raises SubstrateUnavailable where no directory for it can be made."""
    name = f"{os.getpid()}-{time.monotonic_ns():x}"
    state, disk = state_base() / name, disk_base() / name
    try:
        for base in (state.parent, disk.parent):
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            if base.stat().st_uid != os.geteuid():
                raise PermissionError(f"{base} belongs to somebody else")
        state.mkdir(mode=0o700)
        lock_fd = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        disk.mkdir(mode=0o700)
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR and DUTYFREE_STATE_DIR to directories that you may write to"
        raise SubstrateUnavailable(f"no place for the state of cells: {error}", hint=hint) from error
    return Owner(name, state, disk, lock_fd)


def sweep(cgroups: Cgroups) -> list[str]:
    """Remove what dead owners left behind; returns their names."""
    names = {path.name for base in (state_base(), disk_base()) for path in _entries(base)}
    names |= {
        path.name.removeprefix(f"{PARENT}-")
        for home in cgroups.directories()
        for path in _entries(Path(home))
        if path.name.startswith(f"{PARENT}-")
    }
    dead = sorted(name for name in names if _is_dead(name))
    for name in dead:
        for base in (state_base(), disk_base()):
            shutil.rmtree(base / name, ignore_errors=True)
        for home in cgroups.directories():
            _remove_cgroups(Path(home, f"{PARENT}-{name}"))
    return dead


def _entries(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_dir()]
    except OSError:
        return []


def _is_dead(name: str) -> bool:
    pid, _, stamp = name.partition("-")
    if not pid.isdigit() or not stamp:
        return False  # not a name that we give
    lock = state_base() / name / LOCK
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return time.time() - os.fstat(file.fileno()).st_mtime > SETTLING_S or not _runs(int(pid))
    except FileNotFoundError:
        return not _runs(int(pid))
    except OSError:
        return False


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _remove_cgroups(top: Path) -> None:
    for directory, _names, _files in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
