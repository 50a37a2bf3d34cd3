"""The bytes of one connection: first read piece by piece, then handed over as they come, without a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

READ_BYTES: Final = 96 * 1024
MAX_BUFFERED_BYTES: Final = 64 * 1024
"""What the other side may send before anything is wanted of it."""
CLOSE_S: Final = 1.0


class Pipe(asyncio.BufferedProtocol):
    """One connection. It reads into a buffer of its own: the loop's would be allocated anew for each read."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._incoming = memoryview(bytearray(READ_BYTES))
        self._buffer = bytearray()
        self._closed = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed: asyncio.Future[None] | None = None
        self._receive: Callable[[bytes], None] | None = None
        self._on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._incoming[:nbytes])
        if self._receive is not None:
            self._receive(data)
            return
        self._buffer += data
        if len(self._buffer) > MAX_BUFFERED_BYTES:
            self.transport.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        if not self._gone.done():
            self._gone.set_result(None)
        self._wake()
        if self._on_lost is not None:
            self._on_lost()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def read_until(self, end: bytes) -> bytes:
        """All bytes up to `end`, and `end`. Raises OSError if the connection is closed before."""
        while (found := self._buffer.find(end)) < 0:
            await self._more()
        return self._cut(found + len(end))

    async def read_exactly(self, size_bytes: int) -> bytes:
        """So many bytes. Raises OSError if the connection is closed before."""
        while len(self._buffer) < size_bytes:
            await self._more()
        return self._cut(size_bytes)

    def hand_over(self, receive: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        """Give all further bytes to `receive`; `on_lost` is called once, when the connection is lost."""
        self._receive, self._on_lost = receive, on_lost
        if self._buffer:
            receive(self._cut(len(self._buffer)))
        if self._closed:
            on_lost()

    async def end(self) -> None:
        """Drop the connection, and return when its descriptor is closed."""
        self.transport.abort()
        await asyncio.wait({self._gone}, timeout=CLOSE_S)

    def _cut(self, size_bytes: int) -> bytes:
        data = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return data

    async def _more(self) -> None:
        if self._closed:
            raise OSError("it closed the connection")
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed
