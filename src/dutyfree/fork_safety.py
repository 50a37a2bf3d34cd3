"""Descriptors that forked children must not keep.

A child that is forked without exec (`os.fork`, `multiprocessing` with "fork") inherits every descriptor. Its copy of a
lock would keep a dead process's claim alive, and its copy of a stream would keep sandboxes alive after their host.
"""

from __future__ import annotations

import os
from typing import Final

_kept: Final[dict[int, tuple[int, int]]] = {}
"""Descriptor to device and inode: a number that was closed and used again by others is left alone."""
_registered = False


def keep_from_children(*fds: int) -> None:
    """From now on, children that this process forks do not share these descriptors."""
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_replace)
        _registered = True
    for fd in fds:
        _kept[fd] = _identity(fd)


def close(fd: int) -> None:
    """Close a descriptor that was kept from children."""
    _kept.pop(fd, None)
    os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _replace() -> None:
    """Put /dev/null in their places. The numbers stay taken, so that objects which still know them do no harm: they
    can neither close a descriptor of others nor change what an event loop, shared with the parent, waits for."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd, identity in _kept.items():
        try:
            if _identity(fd) == identity:
                os.dup2(null, fd, inheritable=False)
        except OSError:
            continue  # closed without us
    _kept.clear()
    os.close(null)
