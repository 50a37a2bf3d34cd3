"""Guests behind a program's standard input and output: `ssh`, `runsc exec`, anything that carries bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

from dutyfree.errors import LinkFailed, SubstrateFailed
from dutyfree.wire.channel import HANDSHAKE_TIMEOUT_S, Channel

_LAST_WORDS_BYTES: Final = 2048
_EXIT_S: Final = 2.0
_attendants: set[_Attendant] = set()
"""Tasks are only weakly known to their loop."""


async def channel_through(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Channel:
    """Start a program that carries bytes to and from a guest, and greet that guest.

    When the channel ends, the program's input does, and it is to exit; if it does not, it is killed. Raises LinkFailed,
    with the program's last words, if it ends too soon, and otherwise as `Channel.handshake` does.
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
    attendant = _Attendant(program, channel)
    try:
        await channel.handshake()
    except LinkFailed as error:
        words = await attendant.last_words()
        raise LinkFailed(f"{argv[0]} ended before the guest spoke: {words or error.message}") from None
    except BaseException:
        channel.close()
        raise
    return channel


async def seen_off() -> None:
    """Wait for the programs of this loop whose channels have ended: those of a loop that is closed are never reaped."""
    loop = asyncio.get_running_loop()
    ending = [each.task for each in _attendants if each.is_ending and each.task.get_loop() is loop]
    if ending:
        await asyncio.wait(ending)


class _Attendant:
    """Hears what the program says beside the stream, and sees it off."""

    def __init__(self, program: asyncio.subprocess.Process, channel: Channel) -> None:
        self._program = program
        self._heard = bytearray()
        self._ended = asyncio.Event()
        channel.on_death(self._ended.set)
        self.task = asyncio.create_task(self._attend())
        _attendants.add(self)
        self.task.add_done_callback(lambda _: _attendants.discard(self))

    @property
    def is_ending(self) -> bool:
        """Whether the channel has ended, so that the program is about to."""
        return self._ended.is_set()

    async def last_words(self) -> str:
        """What it said last, once it has ended."""
        await asyncio.wait([self.task])
        return bytes(self._heard).decode("utf-8", "replace").strip()

    async def _attend(self) -> None:
        hearing = asyncio.create_task(self._hear())
        await self._ended.wait()
        try:
            async with asyncio.timeout(_EXIT_S):
                await self._program.wait()
        except TimeoutError:
            self._program.kill()
            await self._program.wait()
        finally:
            await asyncio.wait([hearing], timeout=_EXIT_S)
            hearing.cancel()

    async def _hear(self) -> None:
        assert self._program.stderr is not None
        while data := await self._program.stderr.read(_LAST_WORDS_BYTES):
            self._heard += data
            del self._heard[:-_LAST_WORDS_BYTES]
