"""HTTP to a port of a sandbox: each request over a connection of its own, bodies streamed both ways."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import h11

from dutyfree.client.box import Box
from dutyfree.contract import Connection
from dutyfree.errors import DutyfreeError, PortFailed
from dutyfree.server.e2b import identity
from dutyfree.server.e2b.errors import HttpError
from dutyfree.server.e2b.http import ClientGone, HeaderList, Request
from dutyfree.server.e2b.settings import Settings

MAX_HEAD_BYTES: Final = 64 * 1024
_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
_OWN: Final = frozenset({b"e2b-sandbox-id", b"e2b-sandbox-port", b"e2b-traffic-access-token"})


def check_traffic(headers: HeaderList, box: Box) -> None:
    """Raise HttpError 403 if the ports of the sandbox need a token that the request does not have."""
    if identity.PRIVATE not in box.lease.labels:
        return
    expected = identity.traffic_token(box.lease)
    given = [value for name, value in headers if name == b"e2b-traffic-access-token"]
    if not any(identity.is_token(value.decode("latin-1"), expected) for value in given):
        raise HttpError(403, "the ports of this sandbox need the header e2b-traffic-access-token")


def port_closed(port: int) -> HttpError:
    """The answer of E2B's proxy for a port on which nothing listens."""
    return HttpError(502, f"The sandbox is running but port is not open: {port}")


def forwarded(headers: HeaderList) -> HeaderList:
    """The headers that a program in the sandbox gets: without those of one connection, and those of this server."""
    named = {each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")}
    dropped = _HOP_BY_HOP | _OWN | named - {b"host", b"content-length"}
    return [(name, value) for name, value in headers if name not in dropped]


async def proxy(request: Request, box: Box, port: int, settings: Settings) -> None:
    """Pass a request to a program in the sandbox, and its answer back. Raises HttpError and ClientGone."""
    try:
        connection = await box.dial(port)
    except PortFailed:
        raise port_closed(port) from None
    try:
        await _Exchange(request, connection, settings.relay_idle_timeout_s).run()
    finally:
        await connection.close()


class _Exchange:
    def __init__(self, request: Request, connection: Connection, idle_timeout_s: float) -> None:
        self._request = request
        self._connection = connection
        self._idle_timeout_s = idle_timeout_s
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def run(self) -> None:
        head = self._head()
        await self._connection.write(self._http.send(head) or b"")
        sending = asyncio.create_task(self._send_body())
        try:
            await self._receive()
        except h11.RemoteProtocolError as error:
            raise HttpError(502, f"the program in the sandbox does not speak HTTP/1.1: {error}") from None
        except (PortFailed, TimeoutError) as error:
            raise HttpError(502, f"the program in the sandbox broke the connection off: {error}") from None
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, ClientGone, HttpError, DutyfreeError, h11.ProtocolError):
                await sending

    def _head(self) -> h11.Request:
        scope = self._request.scope
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = forwarded(self._request.headers)
        names = {name for name, _ in self._request.headers}
        if b"content-length" not in names and b"transfer-encoding" in names:
            headers.append((b"transfer-encoding", b"chunked"))
        if b"host" not in names:
            headers.append((b"host", b"sandbox"))
        headers.append((b"connection", b"close"))
        try:
            return h11.Request(method=scope["method"], target=target, headers=headers)
        except h11.LocalProtocolError as error:
            raise HttpError(400, f"the request cannot be passed on: {error}") from None

    async def _send_body(self) -> None:
        async for data in self._request.chunks():
            await self._connection.write(self._http.send(h11.Data(data=data)) or b"")
        await self._connection.write(self._http.send(h11.EndOfMessage()) or b"")
        await self._request.disconnected()
        await self._connection.close()  # nobody reads the answer

    async def _receive(self) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(self._idle_timeout_s):
                    self._http.receive_data(await self._connection.read())
            elif isinstance(event, h11.Response):
                headers = [each for each in event.headers.raw_items() if each[0].lower() not in _HOP_BY_HOP]
                await self._request.start(event.status_code, [(name.lower(), value) for name, value in headers])
            elif isinstance(event, h11.Data):
                await self._request.write(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return await self._request.write(b"", more=False)
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise HttpError(502, "the program in the sandbox closed the connection without an answer")
