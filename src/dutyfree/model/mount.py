"""A directory or file of the host that a sandbox sees, read-only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from dutyfree.checked import FilePath, all_of, path_text
from dutyfree.errors import InvalidRequest
from dutyfree.values import dataclass

MAX_MOUNTS = 32
MAX_PATH_BYTES = 1024
RESERVED = ("/proc", "/sys", "/dev", "/.dutyfree", "/.dutyfree-guest")
"""Directories that each sandbox has for itself: nothing can be mounted on or in them."""


@dataclass(frozen=True, slots=True, init=False)
class Mount:
    """Shows the host's `source`, a directory or a regular file, at `target` in a sandbox, which cannot write to it.

    Both paths are absolute and without `..`. `source` may contain symbolic links, which are followed when the sandbox
    is made. `target` is made if it is not there. File systems that are mounted below `source` are not shown.
    """

    source: str
    target: str

    def __init__(self, source: FilePath, target: FilePath) -> None:
        object.__setattr__(self, "source", _checked(source, "mount's source"))
        object.__setattr__(self, "target", target_path(target, "mount"))


def check_mounts(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """The mounts as a tuple. Raises InvalidRequest for too many, and for targets of which one is inside another."""
    found = all_of(Mount, "mounts", mounts, hint="mounts=[dutyfree.Mount(source, target)]")
    if len(found) > MAX_MOUNTS:
        raise InvalidRequest(f"{len(found)} mounts; a sandbox can have {MAX_MOUNTS}")
    check_apart([mount.target for mount in found])
    return found


def check_apart(targets: Sequence[str]) -> None:
    """Raise InvalidRequest for targets of which one is inside another."""
    for one, other in pairwise(sorted(PurePosixPath(target).parts for target in targets)):
        if other[: len(one)] == one:
            raise InvalidRequest(f"the mount at {_joined(other)!r} is inside the mount at {_joined(one)!r}")


def target_path(given: FilePath, what: str) -> str:
    """A path of a sandbox at which something can be mounted, normalised. Raises InvalidRequest."""
    target = _checked(given, f"{what}'s target")
    if target == "/":
        raise InvalidRequest(f"a {what}'s target is '/'", hint="use an image to replace the whole root")
    for place in RESERVED:
        if is_inside(target, place):
            raise InvalidRequest(f"nothing can be mounted at {target!r}: each sandbox has its own {place!r}")
    return target


def is_inside(path: str, directory: str) -> bool:
    """Whether a normalised path is `directory`, or below it."""
    return path == directory or path.startswith(directory if directory == "/" else f"{directory}/")


def _checked(given: FilePath, name: str) -> str:
    path = path_text(f"a {name}", given)
    if not path.startswith("/"):
        raise InvalidRequest(f"a {name} is {path!r:.200}; it must be an absolute path")
    if "\0" in path or ".." in path.split("/"):
        raise InvalidRequest(f"a {name} is {path!r:.200}; '..' and NUL are not allowed")
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise InvalidRequest(f"a {name} is longer than {MAX_PATH_BYTES} bytes")
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _joined(parts: tuple[str, ...]) -> str:
    return str(PurePosixPath(*parts))
