"""Files of a sandbox behind a gate."""

from __future__ import annotations

from os import PathLike

from dutyfree.contract import DEFAULT_READ_LIMIT_BYTES, Files
from dutyfree.model import FileInfo
from dutyfree.substrates.guarded.gate import Gate


class GuardedFiles(Files):
    """`inner`, behind `gate`."""

    def __init__(self, inner: Files, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(self, path: str, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        async with self._gate:
            return await self._inner.read(path, limit_bytes=limit_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        async with self._gate:
            await self._inner.write(path, data, mode=mode)

    async def append(self, path: str, data: bytes) -> None:
        async with self._gate:
            await self._inner.append(path, data)

    async def list(self, path: str) -> list[FileInfo]:
        async with self._gate:
            return await self._inner.list(path)

    async def stat(self, path: str) -> FileInfo:
        async with self._gate:
            return await self._inner.stat(path)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> None:
        async with self._gate:
            await self._inner.mkdir(path, parents=parents, mode=mode)

    async def move(self, source: str, target: str) -> None:
        async with self._gate:
            await self._inner.move(source, target)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        async with self._gate:
            await self._inner.remove(path, recursive=recursive)

    async def upload(self, local: str | PathLike[str], path: str) -> None:
        async with self._gate:
            await self._inner.upload(local, path)

    async def download(self, path: str, local: str | PathLike[str], *, limit_bytes: int | None = None) -> None:
        async with self._gate:
            if limit_bytes is None:
                await self._inner.download(path, local)
            else:
                await self._inner.download(path, local, limit_bytes=limit_bytes)
