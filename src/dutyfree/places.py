"""Where Dutyfree keeps things on this machine: what lasts, and what lives no longer than a process.

The usual places come first. In a container they may be read-only, or there may be no home: then memory serves.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def state_directory() -> Path:
    """What lasts; `DUTYFREE_STATE_DIR` moves it. Where no lasting place can be written to, it is in memory."""
    chosen = os.environ.get("DUTYFREE_STATE_DIR")
    if chosen:
        return Path(chosen).absolute() / "dutyfree"
    usual = _usual_state()
    return usual if usual is not None and _can_be_made(usual) else runtime_directory() / "state"


def runtime_directory() -> Path:
    """For small things that end with their process."""
    user = os.geteuid()
    usable = (place for place in _runtime_places(user) if _can_be_made(place) and _is_ours_or_absent(place))
    return next(usable, None) or next(_runtime_places(user))


def _runtime_places(user: int) -> Iterator[Path]:
    if user == 0:
        yield Path("/run/dutyfree")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "dutyfree")
    import tempfile  # slow to import, and the places above usually serve

    with contextlib.suppress(FileNotFoundError):  # nowhere at all
        yield Path(tempfile.gettempdir(), f"dutyfree-{user}")
    yield Path("/dev/shm", f"dutyfree-{user}")


def _is_ours_or_absent(place: Path) -> bool:
    """In a directory that others may write to, one of them may have been faster."""
    try:
        info = place.lstat()
    except OSError:
        return True
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def _usual_state() -> Path | None:
    if os.geteuid() == 0:
        return Path("/var/lib/dutyfree")
    chosen = os.environ.get("XDG_STATE_HOME")
    if chosen:
        return Path(chosen, "dutyfree")
    try:
        return Path("~/.local/state/dutyfree").expanduser()
    except RuntimeError:  # an id without a name has no home
        return None


def _can_be_made(directory: Path) -> bool:
    """Whether it is there, or could be, and this user may write to it."""
    there = directory
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
