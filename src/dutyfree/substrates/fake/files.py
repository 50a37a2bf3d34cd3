"""`Files` over a tree in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from dutyfree.contract import (
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Files,
)
from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.model import FileInfo
from dutyfree.model.action import check_timeout
from dutyfree.substrates.fake.tree import Directory, Node, Regular, Symlink, Tree, info


class FakeFiles(Files):
    """Files of one fake sandbox; `check_alive` raises once there is none."""

    def __init__(self, tree: Tree, check_alive: Callable[[], None]) -> None:
        self._tree = tree
        self._check_alive = check_alive

    async def read(
        self, path: str, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        with self._operation("read", path, timeout_s):
            data = self._tree.regular(path).data
            if len(data) > limit_bytes:
                raise _refusal(errno.EFBIG)
            return bytes(data)

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        with self._operation("write", path, timeout_s):
            self._tree.replace(path, Regular(bytearray(data), mode))

    async def append(self, path: str, data: bytes, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        with self._operation("append to", path, timeout_s):
            self._tree.create(path).data.extend(data)

    async def list(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        with self._operation("list", path, timeout_s):
            return [info(name, node) for name, node in sorted(self._tree.directory(path).children.items())]

    async def stat(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        with self._operation("stat", path, timeout_s):
            return info(posixpath.basename(path.rstrip("/")) or "/", self._tree.find(path, follow=False))

    async def mkdir(
        self, path: str, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        with self._operation("make directory", path, timeout_s):
            self._tree.make_directory(path, parents=parents, mode=mode)

    async def move(self, source: str, target: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        _check_path(target)
        with self._operation("move", source, timeout_s):
            self._tree.move(source, target)

    async def remove(self, path: str, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        with self._operation("remove", path, timeout_s):
            self._tree.remove(path, recursive=recursive)

    async def upload(
        self, local: str | PathLike[str], path: str, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S
    ) -> None:
        with self._operation("upload to", path, timeout_s):
            node = await asyncio.to_thread(_load, Path(local))
            self._check_alive()
            if not isinstance(node, Directory):
                self._tree.replace(path, node)
                return
            self._tree.make_directory(path, parents=True)
            _merge(self._tree.directory(path), node)

    async def download(
        self,
        path: str,
        local: str | PathLike[str],
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        with self._operation("download", path, timeout_s):
            node = self._tree.find(path)
            if _size_bytes(node) > limit_bytes:
                raise _refusal(errno.EFBIG)
            _check_links(node, depth=0)
            await asyncio.to_thread(_store, node, Path(local))

    @contextmanager
    def _operation(self, verb: str, path: str, timeout_s: float) -> Iterator[None]:
        """Nothing in memory takes long enough to run out of time."""
        self._check_alive()
        _check_path(path)
        check_timeout(timeout_s)
        try:
            yield
        except OSError as error:
            raise FileFailed.refused(verb, path, error.errno or errno.EIO) from error


def _check_path(path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise InvalidRequest(f"{path!r} is not an absolute path")


def _load(local: Path) -> Node:
    status = local.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Symlink(str(local.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return Directory({child.name: _load(child) for child in local.iterdir()}, mode)
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(errno.EINVAL)
    return Regular(bytearray(local.read_bytes()), mode)


def _store(node: Node, local: Path) -> None:
    if isinstance(node, Directory):
        local.mkdir(parents=True, exist_ok=True)
        for name, child in node.children.items():
            _store(child, local / name)
        local.chmod(node.mode)
    elif isinstance(node, Symlink):
        local.symlink_to(node.target)
    elif isinstance(node, Regular):
        local.write_bytes(node.data)
        local.chmod(node.mode)


def _merge(target: Directory, source: Directory) -> None:
    for name, node in source.children.items():
        there = target.children.get(name)
        if isinstance(node, Directory) and isinstance(there, Directory):
            _merge(there, node)
        else:
            target.children[name] = node


def _size_bytes(node: Node) -> int:
    if isinstance(node, Directory):
        return sum(_size_bytes(child) for child in node.children.values())
    return len(node.data) if isinstance(node, Regular) else 0


def _check_links(node: Node, depth: int) -> None:
    """Refuse links that leave the tree, `depth` directories below its top."""
    if isinstance(node, Directory):
        for child in node.children.values():
            _check_links(child, depth + 1)
    elif isinstance(node, Symlink) and _leaves(node.target, depth - 1):
        raise _refusal(errno.EPERM)


def _leaves(target: str, level: int) -> bool:
    if target.startswith("/"):
        return True
    for part in target.split("/"):
        level += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if level < 0:
            return True
    return False


def _refusal(number: int) -> OSError:
    return OSError(number, os.strerror(number))
