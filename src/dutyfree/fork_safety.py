"""Descriptors that forked children must not keep.

A child that is forked without exec (`os.fork`, `multiprocessing` with "fork") inherits every descriptor. Its copy of a
lock would keep a dead process's claim alive, and its copy of a stream would keep sandboxes alive after their host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from dutyfree.errors import SubstrateUnavailable

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


@contextlib.contextmanager
def own_handle() -> Iterator[int]:
    """A pidfd of this process: a helper that has it sees our end, even if a child of ours keeps a stream to it open.

    For children that C code forks, of which Python hears nothing. Raises SubstrateUnavailable.
    """
    try:
        handle = os.pidfd_open(os.getpid())
    except OSError as error:
        raise SubstrateUnavailable(f"this process cannot be watched: pidfd_open: {error.strerror}") from None
    try:
        yield handle
    finally:
        os.close(handle)


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
