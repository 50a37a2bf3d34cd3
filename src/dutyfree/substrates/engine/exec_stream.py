"""An action on the exec path with its output read while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from dutyfree.contract import ActionStream
from dutyfree.failure import on_failure
from dutyfree.guest.stream import GuestActionStream
from dutyfree.model import Action, Chunk, Observation

if TYPE_CHECKING:
    from dutyfree.guest.runner import Runner
    from dutyfree.substrates.engine.exec_path import ExecPath


class ExecActionStream(ActionStream):
    """It begins to connect when it is created; every call waits for the connection."""

    def __init__(self, path: ExecPath, action: Action) -> None:
        self._path = path
        self._action = action
        self._runner: Runner | None = None
        self._entered = False
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> GuestActionStream:
        self._runner = await self._path.connect()
        with on_failure(self._path.disconnect, self._runner):
            stream = GuestActionStream(self._runner, self._action)
            return await stream.__aenter__()

    async def _started(self) -> GuestActionStream:
        return await asyncio.shield(self._starting)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        try:
            return await (await self._started()).__anext__()
        except asyncio.CancelledError:
            await self._end_unless_entered()
            raise

    async def write(self, data: bytes) -> None:
        await (await self._started()).write(data)

    async def end_input(self) -> None:
        await (await self._started()).end_input()

    async def signal(self, number: int) -> None:
        await (await self._started()).signal(number)

    async def kill(self) -> None:
        await (await self._started()).kill()

    async def wait(self) -> Observation:
        try:
            seen = await (await self._started()).wait()
        except asyncio.CancelledError:
            await self._end_unless_entered()
            raise
        self._disconnect()
        return seen

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end_unless_entered(self) -> None:
        if not self._entered:
            await self._end()

    async def _end(self) -> None:
        """End the action, also one that is still connecting: a cancelled connection leaves nothing."""
        self._starting.cancel()
        await asyncio.wait([self._starting])
        if not self._starting.cancelled():
            self._starting.exception()  # reading the stream has raised it already
        self._disconnect()

    def _disconnect(self) -> None:
        if self._runner is not None:
            self._path.disconnect(self._runner)
