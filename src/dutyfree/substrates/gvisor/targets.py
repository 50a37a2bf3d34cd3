"""Makes the mount points of a sandbox, in a root that may be a hostile image's: no link is followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dutyfree.errors import InvalidRequest


def make_target(root: Path, target: str, *, is_directory: bool, owner: int) -> None:
    """Make `target` below `root` if it is not there, with its parents. Raises InvalidRequest for what is in its place.

    What exists keeps its mode and owner.
    """
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = target.strip("/").split("/")
        for depth, name in enumerate(names, 1):
            below = _step(at, name, is_directory or depth < len(names), owner, target)
            os.close(at)
            at = below
    except OSError as error:
        raise InvalidRequest(f"nothing can be mounted at {target!r}: {error.strerror}") from None
    finally:
        os.close(at)


def _step(at: int, name: str, is_directory: bool, owner: int, target: str) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        below = os.open(name, flags, dir_fd=at)
    except FileNotFoundError:
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=at)
        else:
            os.mknod(name, 0o644 | stat.S_IFREG, dir_fd=at)
        os.chown(name, owner, owner, dir_fd=at, follow_symlinks=False)
        below = os.open(name, flags, dir_fd=at)
    mode = os.fstat(below).st_mode
    if stat.S_ISDIR(mode) if is_directory else stat.S_ISREG(mode):
        return below
    os.close(below)
    if stat.S_ISLNK(mode):
        raise InvalidRequest(
            f"nothing can be mounted at {target!r}: a symbolic link is on the way",
            hint="name the path that the link leads to",
        )
    kind = "directory" if is_directory else "regular file"
    raise InvalidRequest(f"nothing can be mounted at {target!r}: {name!r} is no {kind}")
