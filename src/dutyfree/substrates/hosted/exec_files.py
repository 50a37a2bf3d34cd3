"""Files on the exec path: the SDK's own calls, and commands for what it has none for."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2b import CommandExitException
from e2b import exceptions as e2b

from dutyfree.checked import FilePath, data_bytes, path_text
from dutyfree.contract import DEFAULT_DOWNLOAD_LIMIT_BYTES, DEFAULT_FILE_TIMEOUT_S, DEFAULT_READ_LIMIT_BYTES, Files
from dutyfree.contract.files import DEFAULT_TRANSFER_TIMEOUT_S
from dutyfree.errors import CallerError, DutyfreeError, FileFailed, InvalidRequest, SandboxGone, Unsupported
from dutyfree.model import FileInfo, FileKind
from dutyfree.substrates.hosted.failures import failure

if TYPE_CHECKING:
    from dutyfree.substrates.hosted.exec_sandbox import ExecSandbox

_DEFAULT_MODE: Final = 0o644
_UNKNOWN_ID: Final = 65534
_KINDS: Final = {"file": FileKind.FILE, "dir": FileKind.DIRECTORY, "symlink": FileKind.SYMLINK}
_ERRORS: Final = (
    *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EACCES, errno.EPERM),
    *(errno.ENOSPC, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EXDEV, errno.EFBIG, errno.EINVAL),
)


class ExecFiles(Files):
    """Errors have the errno that the service's words name; most services pass those of the kernel on."""

    def __init__(self, sandbox: ExecSandbox, user: str) -> None:
        self._sandbox = sandbox
        self._user = user

    async def read(
        self, path: FilePath, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        found = bytearray()
        async with self._call("read", path, timeout_s) as (files, name):
            async for piece in await files.read(name, format="stream", user=self._user, request_timeout=timeout_s):
                found += piece
                if len(found) > limit_bytes:
                    raise FileFailed.refused("read", name, errno.EFBIG)
        return bytes(found)

    async def write(
        self,
        path: FilePath,
        data: bytes | str,
        *,
        mode: int = _DEFAULT_MODE,
        timeout_s: float = DEFAULT_FILE_TIMEOUT_S,
    ) -> None:
        async with self._call("write", path, timeout_s) as (files, name):
            await files.write(name, data_bytes("data", data), user=self._user, request_timeout=timeout_s)
        if mode != _DEFAULT_MODE:
            await self._command("write", path, f"chmod {mode:o} -- {shlex.quote(name)}", timeout_s)

    async def append(self, path: FilePath, data: bytes | str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        line = f"cat >> {shlex.quote(path_text('path', path))}"
        await self._command("append to", path, line, timeout_s, stdin=data_bytes("data", data))

    async def list(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        async with self._call("list", path, timeout_s) as (files, name):
            entries = await files.list(name, user=self._user, request_timeout=timeout_s)
        return sorted((_info(entry) for entry in entries), key=lambda info: info.name)

    async def stat(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        async with self._call("stat", path, timeout_s) as (files, name):
            return _info(await files.get_info(name, user=self._user, request_timeout=timeout_s))

    async def mkdir(
        self, path: FilePath, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        if parents and mode == 0o755:
            async with self._call("make", path, timeout_s) as (files, name):
                await files.make_dir(name, user=self._user, request_timeout=timeout_s)
            return
        words = f"mkdir {'-p ' if parents else ''}-m {mode:o} -- {shlex.quote(path_text('path', path))}"
        await self._command("make", path, words, timeout_s)

    async def move(self, source: FilePath, target: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        async with self._call("move", source, timeout_s) as (files, name):
            await files.rename(name, path_text("target", target), user=self._user, request_timeout=timeout_s)

    async def remove(
        self, path: FilePath, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        name = path_text("path", path)
        if recursive:
            async with self._call("remove", path, timeout_s) as (files, _):
                await files.remove(name, user=self._user, request_timeout=timeout_s)
            return
        quoted = shlex.quote(name)  # the SDK removes whole trees only
        line = f"if [ -d {quoted} ] && [ ! -L {quoted} ]; then rmdir -- {quoted}; else rm -- {quoted}; fi"
        await self._command("remove", path, line, timeout_s)

    async def upload(self, local: FilePath, path: FilePath, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S) -> None:
        here = Path(path_text("local", local))
        if not await asyncio.to_thread(here.is_file):
            raise Unsupported("the SDK uploads files, not directories", hint="the path `guest` does")
        async with self._call("upload", path, timeout_s) as (files, name):
            with await asyncio.to_thread(here.open, "rb") as content:
                await files.write(name, content, user=self._user, request_timeout=timeout_s)

    async def download(
        self,
        path: FilePath,
        local: FilePath,
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        there = await self.stat(path, timeout_s=timeout_s)
        if there.kind is not FileKind.FILE:
            raise Unsupported("the SDK downloads files, not directories", hint="the path `guest` does")
        taken = 0
        async with self._call("download", path, timeout_s) as (files, name):
            pieces = await files.read(name, format="stream", user=self._user, request_timeout=timeout_s)
            with await asyncio.to_thread(Path(path_text("local", local)).open, "wb") as target:
                async for piece in pieces:
                    taken += len(piece)
                    if taken > limit_bytes:
                        raise FileFailed.refused("download", name, errno.EFBIG)
                    await asyncio.to_thread(target.write, piece)

    @asynccontextmanager
    async def _call(self, what: str, path: FilePath, timeout_s: float) -> AsyncIterator[tuple[Any, str]]:
        name = path_text("path", path)
        if not name.startswith("/") or "\0" in name:
            raise InvalidRequest(f"{name!r:.80} is not an absolute path, or has a NUL byte")
        self._sandbox.check()
        try:
            async with asyncio.timeout(timeout_s):
                yield self._sandbox.remote.files, name
        except TimeoutError:
            raise FileFailed.refused(what, name, errno.ETIMEDOUT) from None
        except (DutyfreeError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _refusal(what, name, error) from error

    async def _command(
        self, what: str, path: FilePath, line: str, timeout_s: float, stdin: bytes | None = None
    ) -> None:
        async with self._call(what, path, timeout_s) as (_, name):
            commands = self._sandbox.remote.commands
            handle = await commands.run(
                line, background=True, user=self._user, timeout=timeout_s, stdin=stdin is not None
            )
            if stdin is not None:
                with suppress(e2b.NotFoundException):  # it has ended already, and says why
                    await handle.send_stdin(stdin)
                    await handle.close_stdin()
            try:
                await handle.wait()
            except CommandExitException as error:
                raise FileFailed.refused(what, name, _errno(error.stderr or "")) from error


def _refusal(what: str, name: str, error: Exception) -> DutyfreeError:
    if isinstance(error, e2b.FileNotFoundException):
        return FileFailed.refused(what, name, errno.ENOENT)
    if isinstance(error, e2b.NotEnoughSpaceException):
        return FileFailed.refused(what, name, errno.ENOSPC)
    found = failure(f"{what} {name!r:.80}", error)
    is_kernels = isinstance(found, CallerError) and not isinstance(found, SandboxGone)
    return FileFailed.refused(what, name, _errno(str(error))) if is_kernels or _named(str(error)) else found


def _named(words: str) -> int | None:
    lower = words.lower()
    return next((code for code in _ERRORS if os.strerror(code).lower() in lower), None)


def _errno(words: str) -> int:
    return _named(words) or errno.EINVAL


def _info(entry: Any) -> FileInfo:
    kind = FileKind.SYMLINK if entry.symlink_target else _KINDS.get(getattr(entry.type, "value", ""), FileKind.OTHER)
    return FileInfo(
        name=entry.name,
        kind=kind,
        mode=entry.mode & 0o7777,
        size_bytes=entry.size,
        mtime_ns=int(entry.modified_time.timestamp() * 1e6) * 1000,
        uid=_id(entry.owner),
        gid=_id(entry.group),
        link_target=entry.symlink_target or None,
    )


def _id(name: str) -> int:
    """The SDK has names alone: root's, and those that are numbers, are known."""
    return 0 if name == "root" else int(name) if name.isdigit() else _UNKNOWN_ID
