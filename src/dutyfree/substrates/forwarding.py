"""A substrate, a sandbox and files that pass calls on to others of their kind."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from dutyfree.checked import FilePath, data_bytes, path_text, whole
from dutyfree.contract import (
    DEFAULT_DIAL_TIMEOUT_S,
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Connection,
    Datagrams,
    Files,
    Listener,
    Sandbox,
    Snapshot,
    Substrate,
)
from dutyfree.model import Capability, FileInfo, Image, Isolation, ListeningPort, Metrics, SavedCache, Unenforced, Usage
from dutyfree.model.action import check_timeout
from dutyfree.model.file import MAX_MODE

if TYPE_CHECKING:
    from dutyfree.images.store import Store

Result = TypeVar("Result")


class ForwardingSubstrate(Substrate):
    """All properties are those of `inner`. Subclasses write `open`, `create` and `close`."""

    def __init__(self, inner: Substrate) -> None:
        self._inner = inner

    @property
    def inner(self) -> Substrate:
        """The substrate that this one wraps."""
        return self._inner

    @property
    def isolation(self) -> Isolation:  # type: ignore[override]  # the contract's attribute, read only here
        return self._inner.isolation

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._inner.capabilities

    @property
    def store(self) -> Store | None:
        return self._inner.store

    @property
    def builds_with(self) -> str | None:
        return self._inner.builds_with

    @property
    def emulated(self) -> bool:
        return self._inner.emulated

    @property
    def version(self) -> str:
        return self._inner.version

    @property
    def snapshots_hold_memory(self) -> bool:
        return self._inner.snapshots_hold_memory

    @property
    def has_default_image(self) -> bool:
        return self._inner.has_default_image

    @property
    def without_mounts(self) -> str:
        return self._inner.without_mounts

    def named_image(self, name: str) -> Image:
        return self._inner.named_image(name)


class ForwardingSandbox(Sandbox):
    """All properties are those of `inner`. Subclasses write the calls that are not passed on as they are."""

    def __init__(self, inner: Sandbox) -> None:
        self.id = inner.id
        self.files = inner.files
        self._inner = inner

    @property
    def inner(self) -> Sandbox:
        return self._inner

    @property
    def pid(self) -> int | None:
        return self._inner.pid

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return self._inner.unenforced

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def dial(
        self, port: int, *, address: str = "127.0.0.1", timeout_s: float = DEFAULT_DIAL_TIMEOUT_S
    ) -> Connection:
        return await self._inner.dial(port, address=address, timeout_s=timeout_s)

    async def listening_ports(self) -> list[ListeningPort]:
        return await self._inner.listening_ports()

    async def listen(self, port: int, *, address: str = "127.0.0.1") -> Listener:
        return await self._inner.listen(port, address=address)

    async def datagrams(self, port: int, *, address: str = "127.0.0.1") -> Datagrams:
        return await self._inner.datagrams(port, address=address)

    async def save_cache(self, name: str) -> SavedCache:
        return await self._inner.save_cache(name)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    @property
    def paused(self) -> bool:
        return self._inner.paused

    async def pause(self) -> None:
        await self._inner.pause()

    async def resume(self) -> None:
        await self._inner.resume()

    def usage(self) -> Usage | None:
        return self._inner.usage()

    async def metrics(self) -> Metrics:
        return await self._inner.metrics()


class ForwardingFiles(Files):
    """Subclasses write `_call` alone: it chooses the files that a call goes to, and what happens around the call.

    Arguments are checked here, so that `inner` gets text, bytes and numbers alone.
    """

    @abstractmethod
    async def _call(self, operation: Callable[[Files], Awaitable[Result]]) -> Result:
        """Give `operation` the files to work on, and return its result."""

    async def read(
        self, path: FilePath, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        path, limit_bytes = path_text("path", path), whole("limit_bytes", limit_bytes, least=0)
        timeout_s = check_timeout(timeout_s)
        return await self._call(lambda files: files.read(path, limit_bytes=limit_bytes, timeout_s=timeout_s))

    async def write(
        self, path: FilePath, data: bytes | str, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        path, data, timeout_s = path_text("path", path), data_bytes("data", data), check_timeout(timeout_s)
        mode = whole("mode", mode, least=0, most=MAX_MODE)
        await self._call(lambda files: files.write(path, data, mode=mode, timeout_s=timeout_s))

    async def append(self, path: FilePath, data: bytes | str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        path, data, timeout_s = path_text("path", path), data_bytes("data", data), check_timeout(timeout_s)
        await self._call(lambda files: files.append(path, data, timeout_s=timeout_s))

    async def list(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> builtins.list[FileInfo]:
        path, timeout_s = path_text("path", path), check_timeout(timeout_s)
        return await self._call(lambda files: files.list(path, timeout_s=timeout_s))

    async def stat(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        path, timeout_s = path_text("path", path), check_timeout(timeout_s)
        return await self._call(lambda files: files.stat(path, timeout_s=timeout_s))

    async def mkdir(
        self, path: FilePath, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        path, timeout_s = path_text("path", path), check_timeout(timeout_s)
        mode = whole("mode", mode, least=0, most=MAX_MODE)
        await self._call(lambda files: files.mkdir(path, parents=parents, mode=mode, timeout_s=timeout_s))

    async def move(self, source: FilePath, target: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        source, target = path_text("source", source), path_text("target", target)
        timeout_s = check_timeout(timeout_s)
        await self._call(lambda files: files.move(source, target, timeout_s=timeout_s))

    async def remove(
        self, path: FilePath, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        path, timeout_s = path_text("path", path), check_timeout(timeout_s)
        await self._call(lambda files: files.remove(path, recursive=recursive, timeout_s=timeout_s))

    async def upload(self, local: FilePath, path: FilePath, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S) -> None:
        local, path, timeout_s = path_text("local", local), path_text("path", path), check_timeout(timeout_s)
        await self._call(lambda files: files.upload(local, path, timeout_s=timeout_s))

    async def download(
        self,
        path: FilePath,
        local: FilePath,
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        path, local, timeout_s = path_text("path", path), path_text("local", local), check_timeout(timeout_s)
        limit_bytes = whole("limit_bytes", limit_bytes, least=0)
        await self._call(lambda files: files.download(path, local, limit_bytes=limit_bytes, timeout_s=timeout_s))
