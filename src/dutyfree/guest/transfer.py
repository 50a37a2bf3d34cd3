"""Whole files and trees, of any size, into a sandbox and out of it.

Local disks block, so that a thread of its own works on the local side of each transfer. It sees the applet as a
blocking file, and the applet's window is all that is ever held in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from dutyfree.archive.reading import PIECE_BYTES, ByteSource
from dutyfree.errors import FileFailed, GuestMisbehaved, InvalidRequest
from dutyfree.guest import trees
from dutyfree.guest.applets import applet_request, raise_if_failed
from dutyfree.guest.exchanges import Streamed
from dutyfree.guest.runner import Runner
from dutyfree.wire.frames import STDOUT
from dutyfree.wire.messages import Exit


class _Applet:
    """A streamed applet as a blocking file, for one thread that is not the loop's."""

    def __init__(
        self, runner: Runner, *words: str, timeout_s: float, takes_input: bool = False, user: bytes = b""
    ) -> None:
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._held = memoryview(b"")
        self._given_up = False
        self.exchange = Streamed(runner.known_limits)
        credit_bytes = self.exchange.output_credit_bytes
        request = applet_request(
            words, takes_input=takes_input, timeout_s=timeout_s, credit_bytes=credit_bytes, user=user
        )
        runner.begin(self.exchange, request, timeout_s)

    def write(self, data: bytes) -> int:
        """Give input; raises BrokenPipeError once the applet takes no more."""
        asyncio.run_coroutine_threadsafe(self.exchange.give(data), self._loop).result()
        if self.exchange.finished or self.exchange.abandoned:
            raise BrokenPipeError(errno.EPIPE, "the applet has ended")
        return len(data)

    def read(self, size: int) -> bytes:
        """At most `size` bytes of output; empty at its end."""
        while not self._held:
            taken = asyncio.run_coroutine_threadsafe(self.exchange.take(), self._loop).result()
            if taken is None and self._given_up:
                # The rest was dropped: an empty result would mean the end of the stream.
                raise trees.BrokenTree("the transfer was cancelled")
            if taken is None:
                return b""
            if taken[0] == STDOUT:
                self._held = memoryview(taken[1])
        data = bytes(self._held[:size])
        self._held = self._held[size:]
        return data

    def end(self) -> Exit:
        """The end of the applet, once its input is complete and its output was read or dropped."""
        return asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    async def _end(self) -> Exit:
        await self.exchange.end_input()
        self.exchange.discard()
        end = await self.exchange.result()
        self._runner.record(self.exchange, end, self.exchange.end_ns)
        return end

    def disown(self, path: str, error: trees.BrokenTree) -> NoReturn:
        """Raise the reason why the output cannot be used: the applet failed, or the guest broke the protocol."""
        ended_by_itself = self.exchange.finished
        self._loop.call_soon_threadsafe(self.exchange.abandon)
        end = self.end()
        if end.exit_code or ended_by_itself:
            raise_if_failed("download", path, end)
        if self._given_up:  # the stream was cut for that reason, and no caller waits for the error
            raise error
        misbehaved = GuestMisbehaved(f"downloading {path!r}: {error}")
        self._loop.call_soon_threadsafe(self.exchange.channel.fail, misbehaved)
        raise misbehaved from error

    async def work(self, in_thread: Callable[[], None]) -> None:
        """Run the thread's side to its end; if it fails, or this is cancelled, the applet is killed."""
        done: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=_thread, args=(in_thread, done), name="dutyfree-transfer", daemon=True).start()
        try:
            await asyncio.shield(done)
        except BaseException:
            self._given_up = True
            self.exchange.abandon()
            await asyncio.wait([done])
            done.exception()
            raise


def _thread(work: Callable[[], None], done: asyncio.Future[None]) -> None:
    try:
        work()
    except BaseException as error:  # every error goes to the caller
        done.get_loop().call_soon_threadsafe(done.set_exception, error)
    else:
        done.get_loop().call_soon_threadsafe(done.set_result, None)


async def upload(runner: Runner, local: Path, path: str, timeout_s: float, user: bytes = b"") -> None:
    """Stream a local file or tree into the sandbox."""
    mode = _local_mode(local)
    if stat.S_ISDIR(mode):
        applet = _Applet(runner, "unpack", path, timeout_s=timeout_s, takes_input=True, user=user)
    elif stat.S_ISREG(mode):
        words = ("write", path, f"{mode & 0o777:o}")
        applet = _Applet(runner, *words, timeout_s=timeout_s, takes_input=True, user=user)
    else:
        raise InvalidRequest(f"{str(local)!r} is neither a file nor a directory")

    def send() -> None:
        try:
            if stat.S_ISDIR(mode):
                trees.pack(local.resolve(), applet)  # a link to a directory is uploaded as the directory
            else:
                _send_file(local, applet)
        except BrokenPipeError:
            pass  # its exit code says why it stopped reading
        except OSError as error:
            raise InvalidRequest(f"cannot read {str(local)!r}: {error}") from error
        raise_if_failed("upload", path, applet.end())

    await applet.work(send)


async def download(
    runner: Runner, path: str, local: Path, limit_bytes: int, timeout_s: float, user: bytes = b""
) -> None:
    """Stream a file or a tree out of the sandbox; `local` appears complete or not at all."""
    deadline_s = time.monotonic() + timeout_s
    try:
        reader = _Applet(runner, "read", path, "0", str(limit_bytes + 1), timeout_s=timeout_s, user=user)
        await reader.work(lambda: _receive(reader, path, local, limit_bytes, _receive_file))
    except FileFailed as error:
        if error.errno != errno.EISDIR:
            raise
        left_s = max(deadline_s - time.monotonic(), 0.001)
        packer = _Applet(runner, "pack", path, timeout_s=left_s, user=user)
        await packer.work(lambda: _receive(packer, path, local, limit_bytes, trees.unpack))


def _receive(
    applet: _Applet, path: str, local: Path, limit_bytes: int, receive: Callable[[ByteSource, Path, int], None]
) -> None:
    try:
        with _staging(local) as content:
            try:
                receive(applet, content, limit_bytes)
            except trees.BrokenTree as error:
                applet.disown(path, error)
            raise_if_failed("download", path, applet.end())
            content.replace(local)
    except OSError as error:
        raise InvalidRequest(f"cannot write {str(local)!r}: {error}") from error


@contextlib.contextmanager
def _staging(local: Path) -> Iterator[Path]:
    """A temporary path beside `local` for the content; it is removed at the end of the block."""
    directory = Path(tempfile.mkdtemp(prefix=".dutyfree-", dir=local.parent))
    try:
        yield directory / "content"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _receive_file(source: ByteSource, target: Path, limit_bytes: int) -> None:
    left_bytes = limit_bytes
    with target.open("xb") as file:
        while piece := source.read(PIECE_BYTES):
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise FileFailed.refused("download", target.name, errno.EFBIG, f"more than {limit_bytes} bytes")
            file.write(piece)


def _send_file(local: Path, sink: trees.Sink) -> None:
    with local.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            sink.write(piece)


def _local_mode(local: Path) -> int:
    try:
        return local.stat().st_mode
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(local)!r}: {error}") from error
