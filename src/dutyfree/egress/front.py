"""Speaks to the programs in the sandbox: HTTP CONNECT, plain HTTP and SOCKS 5 on one port, and direct connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

from dutyfree.egress import http_head, socks
from dutyfree.egress.filters import Response, TunnelStart
from dutyfree.egress.gate import Gate
from dutyfree.egress.http_body import Body, ChunkedBody, SizedBody
from dutyfree.egress.refusal import Refused, Unreachable
from dutyfree.egress.relay import Everything
from dutyfree.errors import DutyfreeError
from dutyfree.model.hostname import HostName

if TYPE_CHECKING:
    from dutyfree.contract import Connection

HEAD_TIMEOUT_S: Final = 15.0
"""In which a program must have said what it wants."""
_CLOSE_S: Final = 2.0
_READ_BYTES: Final = 64 * 1024
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
Parsed = TypeVar("Parsed")


class Client:
    """A connection of a program, with the bytes of it that were read ahead."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._ahead = b""

    def peek(self, parser: Callable[[bytes], Parsed | None]) -> Parsed | None:
        """What the parser finds in the bytes that were read ahead; None if it needs more. Raises as the parser does."""
        return parser(self._ahead) if self._ahead else None

    async def parse(self, parser: Callable[[bytes], Parsed | None]) -> Parsed:
        """What the parser finds at the beginning. Raises Refused at the end of the stream, and as the parser does."""
        while (found := self.peek(parser)) is None:
            data = await self.connection.read(_READ_BYTES)
            if not data:
                raise Refused("the connection ended within a request" if self._ahead else "", 400)
            self._ahead += data
        return found

    def take(self, count: int | None = None) -> bytes:
        """The next bytes that were read ahead; by default all of them."""
        taken = self._ahead[:count]
        self._ahead = self._ahead[len(taken) :]
        return taken

    async def write(self, data: bytes) -> None:
        """Send bytes to the program."""
        if not self.connection.write_now(data):
            await self.connection.write(data)

    async def finish(self) -> None:
        """Close, in such a way that the program can read what was sent to it."""
        with suppress(DutyfreeError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.connection.end_input()
                while await self.connection.read(_READ_BYTES):
                    pass


class Front:
    """Serves the connections of one sandbox."""

    def __init__(self, gate: Gate, *, head_timeout_s: float = HEAD_TIMEOUT_S) -> None:
        self._gate = gate
        self._head_timeout_s = head_timeout_s

    async def serve_proxy(self, connection: Connection) -> None:
        """A connection to the proxy's port. The first byte says which protocol it is."""
        client = Client(connection)
        try:
            first = await self._read(client, lambda buffer: buffer[0], "proxy")
            if first == socks.VERSION:
                await self._socks(client)
            else:
                await self._http(client)
        except (Refused, Unreachable, DutyfreeError, OSError):
            pass  # recorded, and answered where an answer was possible
        finally:
            await connection.close()

    async def serve_direct(self, connection: Connection, host: HostName, port: int) -> None:
        """A connection to one of the resolver's addresses, which stands for the host."""
        client = Client(connection)
        try:
            if port == http_head.HTTP_PORT:
                await self._http(client, (host, port))
            else:
                await self._tunnel(client, "direct", host, port, b"")
        except (Refused, Unreachable, DutyfreeError, OSError):
            pass
        finally:
            await connection.close()

    async def _http(self, client: Client, transparent: tuple[HostName, int] | None = None) -> None:
        how = "http" if transparent is None else "direct"
        try:
            request, length = await self._read(client, lambda buffer: _request(buffer, transparent), how)
            client.take(length)
            if request.is_connect:
                await self._tunnel(client, "connect", request.host, request.port, _ESTABLISHED)
                return
            body: Body = ChunkedBody() if request.chunked else SizedBody(request.length_bytes)
            async with self._gate.passage(how, request.host, request.port) as passage:
                head, first = request.upstream_head(), client.take()
                try:
                    await passage.carry(client.connection, body, Response(), head=head, first=first)
                except Refused as refused:
                    if not passage.entry.received_bytes:
                        raise
                    self._gate.journal.refuse(passage.entry, refused.reason)  # too late for an answer
                    return
        except Refused as refused:
            await _answer(client, refused.status, refused.reason)
            raise
        except Unreachable as failure:
            await _answer(client, 504 if failure.timed_out else 502, failure.reason)
            raise
        await client.finish()

    async def _socks(self, client: Client) -> None:
        try:
            open_to_all, length = await self._read(client, socks.parse_greeting, "socks")
            client.take(length)
            if not open_to_all:
                self._gate.refuse("socks", "", 0, "SOCKS: the program wants a password")
                await client.write(socks.NO_METHOD)
                await client.finish()
                return
            await client.write(socks.ACCEPTED)
            host, port, length = await self._read(client, socks.parse_request, "socks")
        except Refused as refused:
            await client.write(socks.reply(socks.Reply.COMMAND if refused.status == 405 else socks.Reply.FAILED))
            await client.finish()
            raise
        client.take(length)
        try:
            await self._tunnel(client, "socks", host, port, socks.reply(socks.Reply.SUCCEEDED))
        except Refused:
            await client.write(socks.reply(socks.Reply.NOT_ALLOWED))
            await client.finish()
            raise
        except Unreachable:
            await client.write(socks.reply(socks.Reply.UNREACHABLE))
            await client.finish()
            raise

    async def _tunnel(self, client: Client, how: str, host: HostName, port: int, opened: bytes) -> None:
        """Connect, say so, and carry bytes. A refusal after that ends the connection without an answer."""
        async with self._gate.passage(how, host, port) as passage:
            if opened:
                await client.write(opened)
            try:
                start = TunnelStart(host, port)
                await passage.carry(client.connection, start, Everything(), first=client.take())
            except Refused as refused:
                self._gate.journal.refuse(passage.entry, refused.reason)

    async def _read(self, client: Client, parser: Callable[[bytes], Parsed | None], how: str) -> Parsed:
        """What the program asks for. Raises Refused, which is recorded unless the program has asked for nothing."""
        try:
            if (found := client.peek(parser)) is not None:
                return found
            async with asyncio.timeout(self._head_timeout_s):
                return await client.parse(parser)
        except TimeoutError:
            refused = Refused(f"no whole request within {self._head_timeout_s:g} s", 408)
        except Refused as error:
            refused = error
        if refused.reason:
            self._gate.refuse(how, "", 0, refused.reason)
        raise refused


def _request(buffer: bytes, transparent: tuple[HostName, int] | None) -> tuple[http_head.Request, int] | None:
    end = http_head.find_end(buffer)
    return None if end is None else (http_head.parse(buffer[:end], transparent), end)


async def _answer(client: Client, status: int, reason: str) -> None:
    text = f"dutyfree egress: {reason}\n".encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
    )
    with suppress(DutyfreeError, OSError):
        await client.write(head.encode("latin-1") + text)
        await client.finish()
