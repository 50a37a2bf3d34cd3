"""Files on the exec path: one call of the control plane for each operation."""

from __future__ import annotations

import builtins
from os import PathLike
from typing import TYPE_CHECKING

from dutyfree.contract import (
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Files,
)
from dutyfree.guest.files import GuestFiles
from dutyfree.model import FileInfo

if TYPE_CHECKING:
    from dutyfree.substrates.engine.exec_path import ExecPath


class ExecFiles(Files):
    """As the guest's, each through a guest of its own."""

    def __init__(self, path: ExecPath) -> None:
        self._path = path

    async def read(
        self, path: str, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        async with self._path.connected() as runner:
            return await GuestFiles(runner).read(path, limit_bytes=limit_bytes, timeout_s=timeout_s)

    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).write(path, data, mode=mode, timeout_s=timeout_s)

    async def append(self, path: str, data: bytes, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).append(path, data, timeout_s=timeout_s)

    async def list(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> builtins.list[FileInfo]:
        async with self._path.connected() as runner:
            return await GuestFiles(runner).list(path, timeout_s=timeout_s)

    async def stat(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        async with self._path.connected() as runner:
            return await GuestFiles(runner).stat(path, timeout_s=timeout_s)

    async def mkdir(
        self, path: str, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).mkdir(path, parents=parents, mode=mode, timeout_s=timeout_s)

    async def move(self, source: str, target: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).move(source, target, timeout_s=timeout_s)

    async def remove(self, path: str, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).remove(path, recursive=recursive, timeout_s=timeout_s)

    async def upload(
        self, local: str | PathLike[str], path: str, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S
    ) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).upload(local, path, timeout_s=timeout_s)

    async def download(
        self,
        path: str,
        local: str | PathLike[str],
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        async with self._path.connected() as runner:
            await GuestFiles(runner).download(path, local, limit_bytes=limit_bytes, timeout_s=timeout_s)
