"""Copies, merges and measures trees of layers on disk. Their content may be hostile, and may change meanwhile."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from dutyfree.archive.limits import MAX_ENTRIES
from dutyfree.errors import InvalidRequest
from dutyfree.formatting import quoted
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees.alone import alone
from dutyfree.images.trees.attributes import belongs_in_layer, is_opaque, is_whiteout
from dutyfree.images.trees.copying import Copying
from dutyfree.images.trees.descent import MAX_DEPTH, Descent, Visit, path_below, sorted_names, walk
from dutyfree.images.trees.disk import disk_errors
from dutyfree.values import dataclass

_OPEN_MOST: Final = 256
"""The number of directories that a merge keeps open, over all its trees."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The size of a tree."""

    bytes: int
    """Disk space; a hard-linked file counts once."""
    entries: int
    """The number of files and directories, without the root."""


def measure(tree: Path) -> TreeSize:
    """The size of a tree on disk. Raises InvalidRequest past the limits, CapacityError, SubstrateFailed."""
    total_bytes = entries = 0
    seen: set[tuple[int, int]] = set()
    with disk_errors(f"cannot measure {str(tree)!r}"), alone([tree]), Descent.at(tree) as descent:
        for visit in walk(descent):
            if visit.leaving:
                continue
            entries += 1
            inode = (visit.info.st_dev, visit.info.st_ino)
            if inode in seen:
                continue
            if visit.info.st_nlink > 1 and not stat.S_ISDIR(visit.info.st_mode):
                seen.add(inode)
            total_bytes += visit.info.st_blocks * 512
    return TreeSize(total_bytes, entries - 1)


def copy_tree(
    source: Path,
    target: Path,
    *,
    link: bool = False,
    on_bytes: Callable[[int], None] | None = None,
    leave_out: Callable[[os.stat_result], bool] | None = None,
    plain: bool = False,
) -> None:
    """Copy a layer's tree with its metadata into `target`, an empty directory, which is made if it is missing.

    The copy keeps owners, modes, times, hard links, holes, whiteouts, opaque marks, user attributes and capabilities.
    It skips sockets, device nodes below /dev, attributes of overlay mounts, and files that `leave_out` selects by
    their attributes. A `plain` copy has no more than content, owners, times and permissions: no attributes, opaque
    marks or set-id bits, and the owner may read everything. With `link`, files become hard links if the file system
    allows. `on_bytes` gets the number of bytes of each copy step, and is also called for each entry; it may raise to
    stop. Raises InvalidRequest for files that a layer cannot have, CapacityError, and SubstrateFailed, also if the
    source changes meanwhile; the target is then incomplete.
    """
    ownership = Ownership.here()
    with (
        disk_errors(f"cannot copy {str(source)!r}"),
        alone([source], on_bytes),
        Descent.at(source) as here,
        _placed(target, ownership, link=link, plain=plain, on_bytes=on_bytes) as copying,
    ):
        for visit in walk(here):
            if not stat.S_ISDIR(visit.info.st_mode):
                if not (leave_out and leave_out(visit.info)) and belongs_in_layer(visit.path, visit.info):
                    copying.put(visit, here, 0)
            elif visit.leaving:
                copying.end_directory(visit.info)
            else:
                copying.begin_directory(visit.name, here.fd, opaque=not plain and is_opaque(here.fd, ownership))


def merge_trees(
    trees: Sequence[Path],
    target: Path,
    *,
    bottom: bool,
    ownership: Ownership,
    link: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Merge `trees`, bottom first, into one layer in `target` with the same effect; `target` is as for `copy_tree`.

    With `bottom` no layer lies below it, so it has no whiteouts and no opaque marks. Raises as `copy_tree` does.
    """
    if not trees:
        raise InvalidRequest("there are no layers to merge")
    with contextlib.ExitStack() as stack:
        stack.enter_context(disk_errors(f"cannot merge {len(trees)} layers"))
        stack.enter_context(alone(trees, on_bytes))
        open_most = _OPEN_MOST // len(trees)
        top_first = [stack.enter_context(Descent.at(tree, open_most)) for tree in reversed(trees)]
        copying = stack.enter_context(_placed(target, ownership, link=link, on_bytes=on_bytes))
        _Merging(top_first, copying, ownership).run(has_below=not bottom)


@contextlib.contextmanager
def _placed(
    target: Path,
    ownership: Ownership,
    *,
    link: bool,
    plain: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Copying]:
    target.mkdir(mode=0o700, exist_ok=True)
    with Descent.at(target) as place, Descent.at(target) as links:
        yield Copying(place, links, ownership, link=link, plain=plain, on_bytes=on_bytes)


@dataclass(slots=True)
class _Level:
    """A directory of the result that is being filled."""

    name: bytes
    info: os.stat_result
    members: list[int]
    """The trees whose directories are merged here, top first."""
    has_below: bool
    """Whether a lower layer may have this directory, so that whiteouts are needed."""
    names: Iterator[tuple[bytes, list[int]]]
    """The names that are still to be merged, each with the members that have it."""


class _Merging:
    """Walks all trees at the same time, in the way an overlay mount looks up names."""

    def __init__(self, top_first: list[Descent], copying: Copying, ownership: Ownership) -> None:
        self._trees = top_first
        self._copying = copying
        self._ownership = ownership
        self._left_entries = MAX_ENTRIES
        self._levels: list[_Level] = []
        self._here = b""
        """The path of the current directory."""

    def run(self, *, has_below: bool) -> None:
        members, cut = [], False
        for index, tree in enumerate(self._trees):
            members.append(index)
            if is_opaque(tree.fd, self._ownership):
                cut = True
                break
        self._begin(b"", members, cut=cut, has_below=has_below)
        while self._levels:
            level = self._levels[-1]
            found = next(level.names, None)
            if found is None:
                self._end(self._levels.pop())
            else:
                self._merge_name(level, *found)

    def _merge_name(self, level: _Level, name: bytes, holders: list[int]) -> None:
        path = path_below(self._here, name)
        directories: list[int] = []
        cut = False
        for index in holders:
            tree = self._trees[index]
            info = os.stat(name, dir_fd=tree.fd, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                if not directories:
                    self._put(level, Visit(path, name, info), index)
                    return
                cut = True
                break
            tree.enter(name)
            directories.append(index)
            if is_opaque(tree.fd, self._ownership):
                cut = True
                break
        self._here = path
        self._begin(name, directories, cut=cut, has_below=level.has_below)

    def _put(self, level: _Level, visit: Visit, index: int) -> None:
        if is_whiteout(visit.info) and not level.has_below:
            return
        if belongs_in_layer(visit.path, visit.info):
            self._copying.put(visit, self._trees[index], index)

    def _begin(self, name: bytes, members: list[int], *, cut: bool, has_below: bool) -> None:
        """Begin a directory; `cut` says that its members hide the directories below them."""
        if len(self._levels) > MAX_DEPTH:
            raise InvalidRequest(f"more than {MAX_DEPTH} nested directories, at {quoted(self._here)}")
        top = self._trees[members[0]].fd
        self._copying.begin_directory(name, top, opaque=has_below and cut)
        holders: dict[bytes, list[int]] = {}
        for index in members:
            for each in sorted_names(self._trees[index].fd):
                holders.setdefault(each, []).append(index)
            if len(holders) > self._left_entries:
                raise InvalidRequest(f"a tree of more than {MAX_ENTRIES} files and directories")
        self._left_entries -= len(holders)
        names = iter(sorted(holders.items()))
        self._levels.append(_Level(name, os.fstat(top), members, has_below and not cut, names))

    def _end(self, level: _Level) -> None:
        self._copying.end_directory(level.info)
        self._here = self._here[: -len(level.name)].removesuffix(b"/")
        if self._levels:
            for index in level.members:
                self._trees[index].leave()
