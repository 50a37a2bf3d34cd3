"""A directory of a sandbox that is watched, through the applet that is built into the guest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Self

from dutyfree.contract import Watch
from dutyfree.errors import FileFailed, GuestMisbehaved, InvalidRequest
from dutyfree.guest.applets import raise_if_failed
from dutyfree.guest.exchanges import Streamed
from dutyfree.guest.runner import Runner
from dutyfree.model.file_event import FileEvent
from dutyfree.wire.fields import encode_text
from dutyfree.wire.frames import STDOUT
from dutyfree.wire.messages import Mode, Run
from dutyfree.wire.watch_records import WatchDecoder

READY_TIMEOUT_S: Final = 60.0
"""How long the applet may look through the tree before it watches."""


class GuestWatch(Watch):
    """One action that lasts as long as the block.

    At most one window of output is held here; then the applet waits, and the kernel's queue overflows, which is said.
    """

    def __init__(self, runner: Runner, path: str, *, recursive: bool) -> None:
        self._runner = runner
        self._path = path
        self._recursive = recursive
        self._decoder = WatchDecoder(path)
        self._events: deque[FileEvent] = deque()
        self._exchange: Streamed | None = None
        self._reading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        if self._exchange is not None:
            raise InvalidRequest("a watch can be entered once")
        exchange = self._exchange = Streamed(self._runner.known_limits)
        words = ("watch", self._path, str(int(self._recursive)))
        request = Run(id=0, mode=Mode.APPLET, args=tuple(map(encode_text, words)), credit=exchange.output_credit_bytes)
        self._runner.begin(exchange, request, READY_TIMEOUT_S)
        try:
            while not self._decoder.ready:
                if not await self._receive():
                    raise FileFailed.refused("watch", self._path, 5, "it ended at once")
        except BaseException:
            exchange.abandon()
            raise
        exchange.disarm()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._exchange is not None:
            self._exchange.abandon()
            await self._exchange.settled()

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return self

    async def __anext__(self) -> FileEvent:
        async with self._reading:
            while not self._events:
                if not await self._receive():
                    raise StopAsyncIteration
            return self._events.popleft()

    async def _receive(self) -> bool:
        """Take what has come; False after the end of the block. Raises FileFailed when the directory is gone."""
        exchange = self._exchange
        if exchange is None:
            raise InvalidRequest("a watch must be entered first", hint="use `async with`")
        taken = await exchange.take()
        if taken is None:
            if exchange.abandoned:
                return False
            raise_if_failed("watch", self._path, await exchange.result())
            return False
        stream, data = taken
        if stream == STDOUT:  # the rest is the text of an error, whose number is enough
            try:
                self._events.extend(self._decoder.feed(data))
            except GuestMisbehaved as error:
                self._runner.channel.fail(error)
                raise
        return True
