"""An action with its output read, and its input written, while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from dutyfree.checked import whole
from dutyfree.contract import ActionStream
from dutyfree.guest.exchanges import SIGKILL, Streamed
from dutyfree.guest.runner import Runner
from dutyfree.model import Action, Chunk, Observation
from dutyfree.wire.frames import STDOUT
from dutyfree.wire.messages import MAX_SIGNAL, RunFlag


class GuestActionStream(ActionStream):
    """The action starts when this is created. An action without `stdin` waits for `write` and `end_input`."""

    def __init__(self, runner: Runner, action: Action) -> None:
        self._runner = runner
        self._exchange = Streamed(runner.known_limits, action.output_limit_bytes)
        self._observation: Observation | None = None
        self._entered = False
        request = runner.request(action, credit_bytes=self._exchange.output_credit_bytes, flags=RunFlag.STDIN)
        runner.begin(self._exchange, request, action.timeout_s)
        if action.stdin is not None:
            self._exchange.give_last(action.stdin)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        try:
            taken = await self._exchange.take()
        except asyncio.CancelledError:
            self._end_unless_entered()
            raise
        if taken is None:
            raise StopAsyncIteration
        stream, data = taken
        return Chunk("stdout" if stream == STDOUT else "stderr", data)

    async def write(self, data: bytes) -> None:
        await self._exchange.give(data)

    async def end_input(self) -> None:
        await self._exchange.end_input()

    async def signal(self, number: int) -> None:
        number = whole("the signal", number, least=1, most=MAX_SIGNAL)
        if not self._exchange.finished:
            self._exchange.signal(number)

    async def kill(self) -> None:
        if not self._exchange.finished:
            self._exchange.signal(SIGKILL, tree=True)

    async def wait(self) -> Observation:
        self._exchange.discard()
        try:
            end = await self._exchange.result()
        except asyncio.CancelledError:
            self._end_unless_entered()
            raise
        if self._observation is None:
            exchange = self._exchange
            self._observation = self._runner.observe(
                exchange, end, end_ns=exchange.end_ns, truncated=exchange.truncated
            )
        return self._observation

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._exchange.abandon()
        await self._exchange.settled()

    def _end_unless_entered(self) -> None:
        # Inside `async with`, a caller may well give up on one read and go on; leaving the block ends the action.
        if not self._entered:
            self._exchange.abandon()
