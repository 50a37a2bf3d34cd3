"""Removes what killed processes of ours left behind, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from dutyfree import claims
from dutyfree.places import state_directory
from dutyfree.substrates.gvisor import groups

_EXIT_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.01


def disk_directory(claim: str) -> Path:
    """The directory for files of a claim's sandboxes that are not in memory."""
    return state_directory() / "gvisor" / claim


def sweep(kind: str, found: groups.Groups) -> None:
    """Remove what belongs to claims of dead processes. Blocks."""
    for directory in claims.dead(kind):
        remove(directory, found)
        claims.forget(directory)
    for directory in claims.directories(disk_directory("x").parent):
        if claims.is_dead(directory.name, kind):
            claims.forget(directory)


def remove(directory: Path, found: groups.Groups) -> None:
    """Kill gVisor's processes of a claim, and remove all but its directory. Its mounts vanished with its keeper."""
    marker = os.fsencode(f"--root={directory}/")
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    while (left := _marked(marker)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    for parent in found.parents(directory.name):
        groups.remove(parent)
    claims.forget(disk_directory(directory.name))


def _marked(marker: bytes) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and marker in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found
