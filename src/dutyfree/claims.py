"""Claims: names on everything that a substrate makes, which say whether it is still in use.

A claim is named after its process, the moment, and the machine's current boot. Its directory holds a lock that lives as
long as the process (and the programs that were given the descriptor; forked children do not keep it). A claim is dead
once its process has died, or has given it up: whatever still bears its name is a leftover, and the next substrate of
the same kind removes it when it opens.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
from pathlib import Path

from dutyfree import fork_safety
from dutyfree.errors import SubstrateFailed, SubstrateUnavailable
from dutyfree.places import runtime_directory
from dutyfree.removal import remove_tree
from dutyfree.values import dataclass

LOCK = "lock"
_NAME = re.compile(r"(\d{1,7})-[0-9a-f]{6,16}-([0-9a-f]{12})")
_MAX_ABANDONED = 1024
_abandoned: dict[str, None] = {}
"""The names of the last claims that this process gave up, oldest first. The process lives, so only it knows."""


def state_base() -> Path:
    """Where claims and small, short-lived state are."""
    return runtime_directory()


@dataclass(frozen=True, slots=True)
class Claim:
    """One process's claim. A program that is given `lock_fd` keeps it alive, too."""

    name: str
    directory: Path
    lock_fd: int

    @property
    def ours(self) -> bool:
        """Whether this process made it; a forked child that leaves its parent's blocks must not take anything away."""
        return self.name.startswith(f"{os.getpid()}-")

    def release(self) -> None:
        """Give it up, with its directory; in a forked child, only its copy of the descriptor."""
        if self.ours:
            forget(self.directory)
        self.abandon()

    def abandon(self) -> None:
        """Give it up, but leave its directory, by which the next substrate finds what could not be removed."""
        fork_safety.close(self.lock_fd)
        if self.ours:
            _abandoned[self.name] = None
            while len(_abandoned) > _MAX_ABANDONED:
                _abandoned.pop(next(iter(_abandoned)), None)


def claim(kind: str = "") -> Claim:
    """A new claim, below the directory of its `kind`. Raises SubstrateUnavailable where there is no place for it."""
    name = f"{os.getpid()}-{time.monotonic_ns():x}-{_boot()}"
    base = state_base()
    directory = base / kind / name
    try:
        for each in (base, directory.parent):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(each):
                raise PermissionError(f"{each} is not a directory of this user's")
        directory.mkdir(mode=0o700)
        lock_fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        fork_safety.keep_from_children(lock_fd)
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR to a directory that you may write to"
        raise SubstrateUnavailable(f"no place for the state of sandboxes: {error}", hint=hint) from error
    return Claim(name, directory, lock_fd)


def dead(kind: str = "") -> list[Path]:
    """Directories of dead claims of this kind; to be removed, with all that bears their names."""
    base = state_base() / kind
    if not is_ours(base):
        return []
    return sorted(path for path in directories(base) if is_dead(path.name, kind))


def is_dead(name: str, kind: str = "") -> bool:
    """Whether its process has died or given it up. Names of other boots and process namespaces are never dead."""
    named = _NAME.fullmatch(name)
    if named is None or named[2] != _boot():
        return False
    try:
        with (state_base() / kind / name / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    # A claim that is just being made has no lock yet, but its process lives.
    return name in _abandoned or not _lives(int(named[1]))


def _lives(pid: int) -> bool:
    """Asks the kernel, not /proc: that may hide the processes of others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def forget(directory: Path) -> None:
    """Remove it; what cannot be removed now is left to the next substrate that opens."""
    with contextlib.suppress(SubstrateFailed):
        remove_tree(directory)


def is_ours(base: Path) -> bool:
    """Whether this user alone can write there."""
    try:
        info = base.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def directories(directory: Path) -> list[Path]:
    """The directories in it, no links."""
    try:
        return [path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _boot() -> str:
    """Identifies this boot of this machine and this process namespace: others may share its directories."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:12]
