"""A file tree in memory, with the refusals of a real one: every method raises OSError with the kernel's errno."""

from __future__ import annotations

import errno
import os
import posixpath
import time
from dataclasses import dataclass, field

from dutyfree.model import FileInfo, FileKind

_MAX_LINKS = 40


@dataclass(slots=True)
class Regular:
    data: bytearray = field(default_factory=bytearray)
    mode: int = 0o644
    mtime_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True)
class Directory:
    children: dict[str, Node] = field(default_factory=dict)
    mode: int = 0o755
    mtime_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True)
class Symlink:
    target: str
    mode: int = 0o777
    mtime_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True)
class Device:
    """`null` swallows and gives nothing; `zero` never ends."""

    endless: bool
    mode: int = 0o666
    mtime_ns: int = field(default_factory=time.time_ns)


Node = Regular | Directory | Symlink | Device


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a directory, and what it names."""

    parent: Directory
    name: str
    node: Node | None


class Tree:
    """The files of one sandbox."""

    def __init__(self) -> None:
        devices = {"null": Device(endless=False), "zero": Device(endless=True)}
        self.root = Directory({"tmp": Directory(mode=0o1777), "dev": Directory(dict(devices)), "root": Directory()})

    def locate(self, path: str, *, follow: bool = True) -> Place:
        """Where `path` leads; its last component need not be there, and is followed if a symlink and `follow`."""
        pending = _components(path)
        trail = [self.root]
        links = 0
        while pending:
            name = pending.pop()
            if name == "..":
                trail = trail[:-1] or [self.root]
                continue
            node = trail[-1].children.get(name)
            if isinstance(node, Symlink) and (pending or follow):
                links += 1
                if links > _MAX_LINKS:
                    raise _refusal(errno.ELOOP)
                if node.target.startswith("/"):
                    trail = [self.root]
                pending.extend(_components(node.target))
                continue
            if not pending:
                return Place(trail[-1], name, node)
            trail.append(_directory(node))
        return Place(trail[-1], "", trail[-1])

    def find(self, path: str, *, follow: bool = True) -> Node:
        """What is at `path`."""
        node = self.locate(path, follow=follow).node
        if node is None:
            raise _refusal(errno.ENOENT)
        return node

    def regular(self, path: str) -> Regular:
        """The regular file at `path`."""
        node = self.find(path)
        if isinstance(node, Directory):
            raise _refusal(errno.EISDIR)
        if not isinstance(node, Regular):
            raise _refusal(errno.EINVAL)
        return node

    def directory(self, path: str) -> Directory:
        """The directory at `path`."""
        return _directory(self.find(path))

    def create(self, path: str) -> Regular:
        """The regular file at `path`, made if there is none."""
        place = self.locate(path)
        if place.node is None:
            node = place.parent.children[place.name] = Regular()
            return node
        return self.regular(path)

    def replace(self, path: str, node: Node) -> None:
        """Put `node` at `path` in one step, making missing directories."""
        self.make_directory(posixpath.dirname(path), parents=True)
        place = self.locate(path, follow=False)
        if isinstance(place.node, Directory):
            raise _refusal(errno.EISDIR)
        place.parent.children[place.name] = node

    def make_directory(self, path: str, *, parents: bool, mode: int = 0o755) -> None:
        """Make a directory, as `mkdir` or `mkdir -p` does."""
        if parents and posixpath.dirname(path) != path:
            parent = posixpath.dirname(path.rstrip("/") or "/")
            if self.locate_or_none(parent) is None:
                self.make_directory(parent, parents=True)
        place = self.locate(path)
        if place.node is None:
            place.parent.children[place.name] = Directory(mode=mode)
        elif not parents or not isinstance(place.node, Directory):
            raise _refusal(errno.EEXIST if not parents else errno.ENOTDIR)

    def locate_or_none(self, path: str) -> Node | None:
        """What is at `path`, or None where nothing is; other refusals are raised."""
        try:
            return self.find(path)
        except FileNotFoundError:
            return None

    def move(self, source: str, target: str) -> None:
        """Rename, as the system call does."""
        origin, goal = self.locate(source, follow=False), self.locate(target, follow=False)
        if origin.node is None:
            raise _refusal(errno.ENOENT)
        if goal.node is origin.node:
            return
        if isinstance(goal.node, Directory):
            if not isinstance(origin.node, Directory):
                raise _refusal(errno.EISDIR)
            if goal.node.children:
                raise _refusal(errno.ENOTEMPTY)
        elif goal.node is not None and isinstance(origin.node, Directory):
            raise _refusal(errno.ENOTDIR)
        goal.parent.children[goal.name] = origin.node
        del origin.parent.children[origin.name]

    def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file, a symlink, an empty directory or, if `recursive`, any directory."""
        place = self.locate(path, follow=False)
        if place.node is None:
            raise _refusal(errno.ENOENT)
        if not place.name:
            raise _refusal(errno.EBUSY)
        if isinstance(place.node, Directory) and place.node.children and not recursive:
            raise _refusal(errno.ENOTEMPTY)
        del place.parent.children[place.name]


def info(name: str, node: Node) -> FileInfo:
    """What a sandbox says of `node`."""
    kinds: dict[type, FileKind] = {
        Regular: FileKind.FILE,
        Directory: FileKind.DIRECTORY,
        Symlink: FileKind.SYMLINK,
        Device: FileKind.OTHER,
    }
    target = node.target if isinstance(node, Symlink) else None
    size_bytes = len(node.data) if isinstance(node, Regular) else len(target or "")
    return FileInfo(name, kinds[type(node)], node.mode, size_bytes, node.mtime_ns, 0, 0, target)


def _components(path: str) -> list[str]:
    """The meaningful components, last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _directory(node: Node | None) -> Directory:
    if node is None:
        raise _refusal(errno.ENOENT)
    if not isinstance(node, Directory):
        raise _refusal(errno.ENOTDIR)
    return node


def _refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))
