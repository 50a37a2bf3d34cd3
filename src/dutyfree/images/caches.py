"""Caches that several sandboxes fill: what one of them has written becomes part of a new version, for all.

A version is one layer of the store: plain files, without deletions. What a sandbox wrote is hostile input: it is copied
first (`copy_changes`), and only the copy is merged (`merge_changes`), over the version that is the present one then. So
of two sandboxes that fill the same cache at once, the second adds to what the first has published.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError
from dutyfree.formatting import size
from dutyfree.images.store import Store
from dutyfree.images.store.caches import ORIGIN
from dutyfree.images.trees.alone import alone
from dutyfree.images.trees.descent import Descent, Visit, open_file, walk
from dutyfree.images.trees.disk import disk_errors
from dutyfree.images.trees.layers import copy_tree, measure, merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.model import Cache, SavedCache

FILL_TIMEOUT_S: Final = 600.0
"""The longest wait for others that fill the same cache."""
_PIECE_BYTES: Final = 1024 * 1024
_SET_ID: Final = stat.S_ISUID | stat.S_ISGID

OnBytes = Callable[[int], None]


def copy_changes(cache: Cache, upper: Path, target: Path, on_bytes: OnBytes) -> int:
    """Copy the files, links and directories that a sandbox has written in a cache; returns how many others it has.

    Blocks. Raises CapacityError for more than `max_bytes`, InvalidRequest past the limits of layers, SubstrateFailed.
    """
    sieve = _Sieve(cache)
    copy_tree(upper, target, plain=True, leave_out=sieve, on_bytes=on_bytes)
    return sieve.left_out


def merge_changes(store: Store, cache: Cache, changes: Path, left_out: int, on_bytes: OnBytes) -> SavedCache:
    """Publish a version with the present one's files and the copied `changes`, in a staging directory of the store.

    Files are never taken away. A changed file takes the place of the same file of the present version, but never that
    of a directory. Blocks. Raises CapacityError for a version of more than `max_bytes`, InvalidRequest and
    SubstrateFailed; then the present version is as it was.
    """
    with store.filling(cache.owner, cache.name, FILL_TIMEOUT_S, on_bytes) as version:
        present = version.layer if version is not None and store.has(version.layer) else None
        with store.hold([present] if present else []):
            new = _drop_known(changes, store.tree(present) if present else None, on_bytes)
            left_out += new.left_out
            if not new.entries:
                size_bytes = store.layer(present).size_bytes if present else 0
                return SavedCache(present or "", 0, left_out, size_bytes)
            layer, size_bytes = _merge(store, cache, changes, present, on_bytes)
        store.put_cache(cache.owner, cache.name, layer)
    return SavedCache(layer, new.files, left_out, size_bytes)


class _Sieve:
    """Selects what is left out of a copy, by its attributes, and counts. Past the limit it raises CapacityError."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._read_bytes = 0
        self.left_out = 0

    def __call__(self, info: os.stat_result) -> bool:
        is_file = stat.S_ISREG(info.st_mode) and not info.st_mode & _SET_ID
        if not is_file and not stat.S_ISLNK(info.st_mode):
            self.left_out += 1
            return True
        self._read_bytes += info.st_size  # not the blocks: holes take no space, but time to read
        _check_size(self._cache, self._read_bytes)
        return False


def _check_size(cache: Cache, count_bytes: int) -> None:
    if count_bytes > cache.max_bytes:
        owner = f" --owner {shlex.quote(cache.owner)}" if cache.owner else ""
        hint = f"`dutyfree cache remove {cache.name}{owner}` begins anew; `max_bytes` is the limit"
        raise CapacityError(f"the cache {cache.name!r} would have more than {size(cache.max_bytes)}", hint=hint)


@dataclass(slots=True)
class _New:
    """What changes add to a version."""

    entries: int = 0
    files: int = 0
    left_out: int = 0


def _drop_known(changes: Path, present: Path | None, on_bytes: OnBytes) -> _New:
    """Remove from `changes` what the present version has, too, and what would hide a directory of it."""
    new = _New()
    with contextlib.ExitStack() as stack:
        stack.enter_context(disk_errors("cannot compare a cache with its changes"))
        stack.enter_context(alone([changes, *([present] if present else [])], on_bytes))
        here = stack.enter_context(Descent.at(changes))
        known = _Known(stack.enter_context(Descent.at(present)) if present else None)
        for visit in walk(here):
            on_bytes(0)
            if not visit.path:
                continue
            if stat.S_ISDIR(visit.info.st_mode):
                if visit.leaving:
                    known.leave()
                else:
                    new.entries += not known.enter(visit.name)
                continue
            found = known.look(visit.name)
            if found is not None and stat.S_ISDIR(found.st_mode):
                new.left_out += 1
            elif found is None or not known.has(visit, found, here):
                new.entries += 1
                new.files += 1
                continue
            os.unlink(visit.name, dir_fd=here.fd)
    return new


class _Known:
    """A position in the present version that follows a walk through the changes."""

    def __init__(self, descent: Descent | None) -> None:
        self._descent = descent
        self._missing = 0 if descent else 1
        """How many of the walk's last directories the version does not have."""

    def look(self, name: bytes) -> os.stat_result | None:
        """What the version has of this name in the current directory."""
        if self._missing or self._descent is None:
            return None
        try:
            return os.stat(name, dir_fd=self._descent.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def enter(self, name: bytes) -> bool:
        """Follow the walk into a directory; returns whether the version has it."""
        found = self.look(name)
        if self._descent is None or found is None or not stat.S_ISDIR(found.st_mode):
            self._missing += 1
            return False
        self._descent.enter(name)
        return True

    def leave(self) -> None:
        """Follow the walk to the parent."""
        if self._missing:
            self._missing -= 1
        elif self._descent is not None:
            self._descent.leave()

    def has(self, visit: Visit, found: os.stat_result, here: Descent) -> bool:
        """Whether a file or link of the walk is the same as `found`: kind, permissions and content."""
        assert self._descent is not None
        if found.st_mode != visit.info.st_mode or found.st_size != visit.info.st_size:
            return False
        if stat.S_ISLNK(found.st_mode):
            return os.readlink(visit.name, dir_fd=here.fd) == os.readlink(visit.name, dir_fd=self._descent.fd)
        ours = open_file(visit, here)
        try:
            theirs = open_file(Visit(visit.path, visit.name, found), self._descent)
            try:
                return _is_equal(ours, theirs)
            finally:
                os.close(theirs)
        finally:
            os.close(ours)


def _is_equal(one: int, other: int) -> bool:
    while True:
        piece = os.read(one, _PIECE_BYTES)
        if piece != os.read(other, _PIECE_BYTES):
            return False
        if not piece:
            return True


def _merge(store: Store, cache: Cache, changes: Path, present: str | None, on_bytes: OnBytes) -> tuple[str, int]:
    """Make the layer of a new version, without another copy of any file; returns its digest and size."""
    # A version is named by the one before and its changes: reading all of a large cache would take long.
    added = pack(changes, None, store.ownership, on_bytes)
    digest = "sha256:" + hashlib.sha256(json.dumps(["cache", present, added]).encode()).hexdigest()
    tree = changes
    if present is not None:
        tree = changes.with_name("merged")
        trees = [store.tree(present), changes]
        merge_trees(trees, tree, bottom=True, ownership=store.ownership, link=True, on_bytes=on_bytes)
    _check_size(cache, measure(tree).bytes)
    info = store.add(tree, digest, ORIGIN)
    return info.digest, info.size_bytes
