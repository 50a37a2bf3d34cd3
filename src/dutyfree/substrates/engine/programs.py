"""Guests behind a program's standard input and output: `ssh`, `runsc exec`, anything that carries bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

from dutyfree.errors import LinkFailed, SubstrateFailed
from dutyfree.wire.channel import HANDSHAKE_TIMEOUT_S, Channel

_STDERR_BYTES: Final = 2048
_EXIT_S: Final = 2.0
_watchers: set[_Watcher] = set()
"""Keeps the tasks alive: an event loop holds only weak references to them."""


async def channel_through(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Channel:
    """Start a program that carries bytes to and from a guest, and shake hands with the guest.

    When the channel ends, the program's input is closed; a program that does not exit then is killed. Raises
    LinkFailed, with the end of the program's standard error, if it exits too soon, and otherwise as `Channel.handshake`
    does.
    """
    their_in, our_out = os.pipe2(os.O_CLOEXEC)
    our_in, their_out = os.pipe2(os.O_CLOEXEC)
    try:
        program = await asyncio.create_subprocess_exec(
            *argv, stdin=their_in, stdout=their_out, stderr=asyncio.subprocess.PIPE, env=env, start_new_session=True
        )
    except BaseException as error:
        os.close(our_out)
        os.close(our_in)
        if isinstance(error, OSError):
            raise SubstrateFailed(f"{argv[0]} could not be started: {error}") from error
        raise
    finally:
        os.close(their_in)
        os.close(their_out)
    channel = Channel(our_in, our_out, handshake_timeout_s=handshake_timeout_s)
    watcher = _Watcher(program, channel)
    try:
        await channel.handshake()
    except LinkFailed as error:
        words = await watcher.stderr_tail()
        raise LinkFailed(f"{argv[0]} ended before the guest's HELLO: {words or error.message}") from None
    except BaseException:
        channel.close()
        raise
    return channel


async def wait_for_programs() -> None:
    """Wait for the programs of this loop with a closed channel: after the loop has closed, they are never reaped."""
    loop = asyncio.get_running_loop()
    ending = [each.task for each in _watchers if each.is_ending and each.task.get_loop() is loop]
    if ending:
        await asyncio.wait(ending)


class _Watcher:
    """Keeps the end of the program's standard error, and waits for its exit once the channel has ended."""

    def __init__(self, program: asyncio.subprocess.Process, channel: Channel) -> None:
        self._program = program
        self._stderr = bytearray()
        self._ended = asyncio.Event()
        channel.on_death(self._ended.set)
        self.task = asyncio.create_task(self._watch())
        _watchers.add(self)
        self.task.add_done_callback(lambda _: _watchers.discard(self))

    @property
    def is_ending(self) -> bool:
        """Whether the channel has ended, so that the program is about to."""
        return self._ended.is_set()

    async def stderr_tail(self) -> str:
        """The end of its standard error, once it has exited."""
        await asyncio.wait([self.task])
        return bytes(self._stderr).decode("utf-8", "replace").strip()

    async def _watch(self) -> None:
        reading = asyncio.create_task(self._read_stderr())
        await self._ended.wait()
        try:
            async with asyncio.timeout(_EXIT_S):
                await self._program.wait()
        except TimeoutError:
            self._program.kill()
            await self._program.wait()
        finally:
            await asyncio.wait([reading], timeout=_EXIT_S)
            reading.cancel()

    async def _read_stderr(self) -> None:
        assert self._program.stderr is not None
        while data := await self._program.stderr.read(_STDERR_BYTES):
            self._stderr += data
            del self._stderr[:-_STDERR_BYTES]
