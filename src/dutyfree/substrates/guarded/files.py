"""Files of a sandbox behind a gate."""

from __future__ import annotations

from os import PathLike

from dutyfree.contract import (
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Files,
)
from dutyfree.model import FileInfo
from dutyfree.substrates.guarded.gate import Gate


class GuardedFiles(Files):
    """`inner`, behind `gate`."""

    def __init__(self, inner: Files, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(
        self, path: str, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        async with self._gate:
            return await self._inner.read(path, limit_bytes=limit_bytes, timeout_s=timeout_s)

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        async with self._gate:
            await self._inner.write(path, data, mode=mode, timeout_s=timeout_s)

    async def append(self, path: str, data: bytes, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._gate:
            await self._inner.append(path, data, timeout_s=timeout_s)

    async def list(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        async with self._gate:
            return await self._inner.list(path, timeout_s=timeout_s)

    async def stat(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        async with self._gate:
            return await self._inner.stat(path, timeout_s=timeout_s)

    async def mkdir(
        self, path: str, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        async with self._gate:
            await self._inner.mkdir(path, parents=parents, mode=mode, timeout_s=timeout_s)

    async def move(self, source: str, target: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._gate:
            await self._inner.move(source, target, timeout_s=timeout_s)

    async def remove(self, path: str, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._gate:
            await self._inner.remove(path, recursive=recursive, timeout_s=timeout_s)

    async def upload(
        self, local: str | PathLike[str], path: str, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S
    ) -> None:
        async with self._gate:
            await self._inner.upload(local, path, timeout_s=timeout_s)

    async def download(
        self,
        path: str,
        local: str | PathLike[str],
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        async with self._gate:
            await self._inner.download(path, local, limit_bytes=limit_bytes, timeout_s=timeout_s)
