"""Files of a sandbox, through the applets that are built into the guest."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dutyfree.checked import FilePath, data_bytes, path_text, whole
from dutyfree.contract import (
    DEFAULT_DOWNLOAD_LIMIT_BYTES,
    DEFAULT_FILE_TIMEOUT_S,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TRANSFER_TIMEOUT_S,
    Files,
    Watch,
)
from dutyfree.errors import FileFailed, GuestMisbehaved, InvalidRequest
from dutyfree.guest.applets import applet_request, raise_if_failed
from dutyfree.guest.exchanges import Collected
from dutyfree.guest.runner import Runner
from dutyfree.model import FileInfo, User
from dutyfree.model.action import check_timeout
from dutyfree.model.file import MAX_MODE
from dutyfree.wire.messages import ExitFlag
from dutyfree.wire.records import decode_records

_LISTING_LIMIT_BYTES: Final = 64 * 1024 * 1024
_LONG_BYTES: Final = 256 * 1024
"""A listing of this size or more is parsed in a thread, so that it does not delay other actions on the loop."""
_TEXT_LIMIT_BYTES: Final = 4096
_USERS_REFUSAL_HINT: Final = "this view of the files acts as another user than root, with that user's rights"


class GuestFiles(Files):
    """Each method is one action, multiplexed with all the others."""

    def __init__(self, runner: Runner, refusal_hint: str | None = None, user: User | None = None) -> None:
        """`refusal_hint`: the hint of errors about missing permissions, where the substrate has one."""
        self._runner = runner
        self._refusal_hint = refusal_hint if user is None else _USERS_REFUSAL_HINT
        self._user, _ = runner.identity(user)

    def as_user(self, user: User) -> Files:
        return GuestFiles(self._runner, user=user)

    async def read(
        self, path: FilePath, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        path, limit_bytes = _checked(path), whole("limit_bytes", limit_bytes, least=0)
        # One byte more than the limit: a file of exactly that size is fine, a longer one is not.
        words = ("read", path, "0", str(limit_bytes + 1))
        data = await self._applet(*words, timeout_s=timeout_s, output_limit_bytes=limit_bytes + 1)
        if len(data) > limit_bytes:
            raise FileFailed.refused("read", path, errno.EFBIG, f"it has more than {limit_bytes} bytes")
        return data

    async def write(
        self, path: FilePath, data: bytes | str, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        await self._applet("write", path, _octal(mode), stdin=data_bytes("data", data), timeout_s=timeout_s)

    async def append(self, path: FilePath, data: bytes | str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        await self._applet("append", path, stdin=data_bytes("data", data), timeout_s=timeout_s)

    async def list(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        return sorted(await self._records("list", path, timeout_s), key=lambda entry: entry.name)

    async def stat(self, path: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        return (await self._records("stat", path, timeout_s))[0]

    async def mkdir(
        self, path: FilePath, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        await self._applet("mkdir", path, _octal(mode), str(int(parents)), timeout_s=timeout_s)

    async def move(self, source: FilePath, target: FilePath, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        await self._applet("move", source, _checked(target), timeout_s=timeout_s)

    async def remove(
        self, path: FilePath, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        await self._applet("remove", path, str(int(recursive)), timeout_s=timeout_s)

    async def upload(self, local: FilePath, path: FilePath, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S) -> None:
        with self._hinting():
            from dutyfree.guest import transfer  # archives are for trees alone

            await transfer.upload(self._runner, Path(local), _checked(path), check_timeout(timeout_s), self._user)

    async def download(
        self,
        path: FilePath,
        local: FilePath,
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        timeout_s, limit_bytes = check_timeout(timeout_s), whole("limit_bytes", limit_bytes, least=0)
        from dutyfree.guest import transfer

        await transfer.download(self._runner, _checked(path), Path(local), limit_bytes, timeout_s, self._user)

    def watch(self, path: FilePath, *, recursive: bool = False) -> Watch:
        from dutyfree.guest.watch import GuestWatch  # few programs watch

        return GuestWatch(self._runner, _checked(path), recursive=recursive)

    @contextlib.contextmanager
    def _hinting(self) -> Iterator[None]:
        try:
            yield
        except FileFailed as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                error.hint = error.hint or self._refusal_hint
            raise

    async def _records(self, name: str, given: FilePath, timeout_s: float) -> builtins.list[FileInfo]:
        path = _checked(given)
        output = await self._applet(name, path, timeout_s=timeout_s, output_limit_bytes=_LISTING_LIMIT_BYTES)
        try:
            is_long = len(output) > _LONG_BYTES
            entries = await asyncio.to_thread(decode_records, output) if is_long else decode_records(output)
            if name == "stat" and len(entries) != 1:
                raise GuestMisbehaved(f"{len(entries)} records for one file")
            for entry in entries:
                if name == "list" and ("/" in entry.name or entry.name in (".", "..")):
                    raise GuestMisbehaved(f"a directory entry called {entry.name!r}")
        except GuestMisbehaved as error:
            self._runner.channel.fail(error)
            raise
        return entries

    async def _applet(
        self,
        name: str,
        given: FilePath,
        *args: str,
        timeout_s: float,
        stdin: bytes | None = None,
        output_limit_bytes: int = 0,
    ) -> bytes:
        """The applet's output. Raises FileFailed if it failed, also for output past the limit."""
        path = _checked(given)
        exchange = Collected(output_limit_bytes + _TEXT_LIMIT_BYTES, self._runner.known_limits)
        request = applet_request(
            (name, path, *args),
            takes_input=bool(stdin),
            timeout_s=check_timeout(timeout_s),
            output_limit_bytes=output_limit_bytes + _TEXT_LIMIT_BYTES,
            credit_bytes=exchange.output_credit_bytes,
            user=self._user,
        )
        end = await self._runner.collect(exchange, request, stdin=stdin, timeout_s=timeout_s)
        self._runner.record(exchange, end, exchange.end_ns)
        with self._hinting():
            raise_if_failed(name, path, end)
        if exchange.truncated or end.flags & ExitFlag.TRUNCATED:
            raise FileFailed.refused(name, path, errno.EFBIG, f"the answer has more than {output_limit_bytes} bytes")
        return bytes(exchange.stdout)


def _checked(given: FilePath) -> str:
    path = path_text("path", given)
    if not posixpath.isabs(path) or "\0" in path:
        raise InvalidRequest(f"{path!r} is not an absolute path")
    return path


def _octal(mode: int) -> str:
    return f"{whole('mode', mode, least=0, most=MAX_MODE):o}"
