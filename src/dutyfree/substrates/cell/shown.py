"""What a cell's mounts show of the host: sources as the spawner can attach them.

As root, each source is a mount of its own that is attached nowhere, and goes to the spawner as a descriptor. Only a
process with privileges in the host's own mount namespace can make those. An ordinary user's spawner has a copy of all
mounts of the host at `/host`: it looks the source up there, and checks that it found the same file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest
from dutyfree.model import Mount
from dutyfree.substrates.sources import OpenedSource, Source, close_all, open_sources

_OPEN_TREE: Final = 428
"""The same number on every architecture."""
_CLONE: Final = 1
_EMPTY_PATH: Final = 0x1000
_REASONS: Final = {
    errno.ELOOP: ("a symbolic link is on the way", "name the path that the link leads to"),
    errno.ENOTDIR: ("a file is on the way, or in place of the directory", None),
    errno.EISDIR: ("a directory is in place of the file", None),
    errno.EEXIST: ("what is there is no regular file", None),
    errno.EROFS: ("the directory is read-only in the sandbox", None),
    errno.ESTALE: ("another file has taken the place of the source", "try again"),
    errno.ENOENT: (
        "the source was mounted after the substrate was opened, or was removed",
        "open the host again: an ordinary user's cells see what was mounted then",
    ),
    errno.EINVAL: (
        "file systems are mounted below the source, or the kernel can make no overlay of it",
        "mount the directories below it one by one",
    ),
}


class ShownSources:
    """The sources of one cell that is being made. `close` gives the descriptors back."""

    def __init__(self, sources: tuple[Source, ...] = (), trees: tuple[int, ...] = ()) -> None:
        self.sources = sources
        self.trees = trees
        """As root, a descriptor for each source."""

    @classmethod
    async def find(cls, mounts: Sequence[Mount], *private: Path, rootless: bool) -> Self:
        """Open the sources of `mounts`. Raises as `open_sources` does."""
        opened = await open_sources(mounts, *private)
        try:
            trees = () if rootless else _trees(opened)
        finally:
            close_all(opened)
        return cls(tuple(each.source for each in opened), trees)

    def close(self) -> None:
        for tree in self.trees:
            os.close(tree)


NOTHING_SHOWN: Final = ShownSources()


def refusal(target: str, number: int) -> DutyfreeError:
    """The error for a mount at `target` that the kernel refused with the error `number`."""
    if number in (errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE):
        return CapacityError(f"no room for the mount at {target!r}: {os.strerror(number)}")
    reason, hint = _REASONS.get(number, (os.strerror(number), None))
    return InvalidRequest(f"nothing can be mounted at {target!r}: {reason}", hint=hint)


def _trees(opened: Sequence[OpenedSource]) -> tuple[int, ...]:
    import ctypes  # slow to import, and few cells have mounts

    libc = ctypes.CDLL(None, use_errno=True)
    trees: list[int] = []
    for each in opened:
        # Without AT_RECURSIVE: what is mounted below the source stays out.
        tree = libc.syscall(_OPEN_TREE, each.fd, b"", _CLONE | os.O_CLOEXEC | _EMPTY_PATH)
        if tree < 0:
            reason = os.strerror(ctypes.get_errno())
            for made in trees:
                os.close(made)
            raise InvalidRequest(f"the mount's source {each.source.path!r} cannot be mounted elsewhere: {reason}")
        trees.append(tree)
    return tuple(trees)
