"""WebSockets to a port of a sandbox: after the request, bytes are passed on as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from dutyfree.client.box import Box
from dutyfree.contract import Connection
from dutyfree.errors import DutyfreeError, PortFailed
from dutyfree.server.e2b import connect
from dutyfree.server.e2b.errors import HttpError, to_http
from dutyfree.server.e2b.http import HeaderList
from dutyfree.server.e2b.ports import MAX_HEAD_BYTES, check_traffic, forwarded, port_closed

_READ_BYTES: Final = 64 * 1024

FindPort = Callable[[HeaderList], Awaitable[tuple[Box, int]]]
"""The box and the port that a request names. Raises HttpError and DutyfreeError."""


def relay_protocol(find: FindPort, idle_timeout_s: float) -> type[asyncio.Protocol]:
    """A class for the setting `ws` of uvicorn, which gives it the requests that ask for a WebSocket."""

    class RelayProtocol(asyncio.StreamReaderProtocol):
        """One connection that has asked for a WebSocket."""

        def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
            reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
            super().__init__(reader, self._connected)
            self._connections: set[Any] = server_state.connections
            self._relaying: asyncio.Task[None] | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._connections.add(self)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._connections.discard(self)
            super().connection_lost(exc)

        def shutdown(self) -> None:
            """The server ends."""
            if self._relaying is not None:
                self._relaying.cancel()

        async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._relaying = asyncio.current_task()
            with suppress(asyncio.CancelledError, OSError):
                await serve(reader, writer, find, idle_timeout_s)
            writer.close()

    return RelayProtocol


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, find: FindPort, idle_timeout_s: float
) -> None:
    """Pass one connection on, from its request to its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        line, headers = split_head(head)
        box, port = await find(headers)
        check_traffic(headers, box)
        try:
            connection = await box.dial(port)
        except PortFailed:
            raise port_closed(port) from None
    except (HttpError, DutyfreeError) as error:
        refusal = error if isinstance(error, HttpError) else to_http(error)
        writer.write(_refusal(refusal))
        return
    async with connection:
        await connection.write(join_head(line, headers))
        with suppress(DutyfreeError):
            await _relay(reader, writer, connection, idle_timeout_s)


def split_head(head: bytes) -> tuple[bytes, HeaderList]:
    """The request line, and the headers, with names in lower case."""
    line, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    pairs = [each.partition(b":") for each in rest]
    return line, [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def join_head(line: bytes, headers: HeaderList) -> bytes:
    """The request that the program gets."""
    passed = [*forwarded(headers), (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return b"\r\n".join([line, *(name + b": " + value for name, value in passed), b"", b""])


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection, idle_timeout_s: float
) -> None:
    """Pass bytes both ways until a side ends, or nothing was sent for too long."""
    loop = asyncio.get_running_loop()
    moved_s = loop.time()

    async def inwards() -> None:
        nonlocal moved_s
        while data := await reader.read(_READ_BYTES):
            await connection.write(data)
            moved_s = loop.time()
        await connection.end_input()
        await asyncio.sleep(idle_timeout_s)  # the program may still answer

    async def outwards() -> None:
        nonlocal moved_s
        while data := await connection.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
            moved_s = loop.time()

    async def idle() -> None:
        while (left_s := moved_s + idle_timeout_s - loop.time()) > 0:  # noqa: ASYNC110 - it waits for silence
            await asyncio.sleep(left_s)

    tasks = {asyncio.create_task(each()) for each in (inwards, outwards, idle)}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _refusal(error: HttpError) -> bytes:
    body = connect.dump(error.body)
    phrase = HTTPStatus(error.status).phrase if error.status in HTTPStatus._value2member_map_ else "Error"
    head = f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
