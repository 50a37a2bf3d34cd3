"""A TCP proxy that cuts connections: what was on its way is lost, as on a bad network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class CuttingProxy:
    """`cut` drops every connection at once. With `stalls`, bytes stop to flow before, so that more of them are lost."""

    def __init__(self, target: str, seed: int) -> None:
        address = urlsplit(target)
        self._target = (address.hostname, address.port)
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self.cuts = 0
        self.refuses = False

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flows.set()
        self._drop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def cut(self) -> None:
        """Stop the bytes for a moment, then drop all connections."""
        self._flows.clear()
        await asyncio.sleep(self._random.uniform(0, 0.01))
        self.cuts += len(self._writers) > 0
        self._drop()
        self._flows.set()

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refuses:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, up_writer}
        self._writers |= pair
        await asyncio.gather(self._carry(reader, up_writer), self._carry(up_reader, writer))
        self._writers -= pair
        for each in pair:
            each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            # Odd sizes, so that frames are cut anywhere.
            while data := await reader.read(self._random.choice((1, 7, 100, 1000, 65536))):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def cutting_proxy(target: str, seed: int = 1) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(target, seed)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
