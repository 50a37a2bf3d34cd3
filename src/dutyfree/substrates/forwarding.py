"""Files that pass each call on to the files of another object."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from os import PathLike
from typing import TypeVar

from dutyfree.contract import (
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Files,
)
from dutyfree.model import FileInfo

Result = TypeVar("Result")


class ForwardingFiles(Files):
    """Subclasses write `_call` alone: it chooses the files that a call goes to, and what happens around the call."""

    @abstractmethod
    async def _call(self, operation: Callable[[Files], Awaitable[Result]]) -> Result:
        """Give `operation` the files to work on, and return its result."""

    async def read(
        self, path: str, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        return await self._call(lambda files: files.read(path, limit_bytes=limit_bytes, timeout_s=timeout_s))

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        await self._call(lambda files: files.write(path, data, mode=mode, timeout_s=timeout_s))

    async def append(self, path: str, data: bytes, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        await self._call(lambda files: files.append(path, data, timeout_s=timeout_s))

    async def list(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> builtins.list[FileInfo]:
        return await self._call(lambda files: files.list(path, timeout_s=timeout_s))

    async def stat(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        return await self._call(lambda files: files.stat(path, timeout_s=timeout_s))

    async def mkdir(
        self, path: str, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        await self._call(lambda files: files.mkdir(path, parents=parents, mode=mode, timeout_s=timeout_s))

    async def move(self, source: str, target: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        await self._call(lambda files: files.move(source, target, timeout_s=timeout_s))

    async def remove(self, path: str, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        await self._call(lambda files: files.remove(path, recursive=recursive, timeout_s=timeout_s))

    async def upload(
        self, local: str | PathLike[str], path: str, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S
    ) -> None:
        await self._call(lambda files: files.upload(local, path, timeout_s=timeout_s))

    async def download(
        self,
        path: str,
        local: str | PathLike[str],
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        await self._call(lambda files: files.download(path, local, limit_bytes=limit_bytes, timeout_s=timeout_s))
