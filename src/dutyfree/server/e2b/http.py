"""What the handlers need of HTTP: bounded bodies, answers, streams that end when their client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl

from dutyfree.errors import InvalidRequest
from dutyfree.server.e2b import connect
from dutyfree.server.e2b.errors import HttpError, RpcError
from dutyfree.server.e2b.routing import header

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

MAX_QUERY_FIELDS: Final = 100
JSON: Final = (b"content-type", b"application/json")
STREAM_JSON: Final = (b"content-type", b"application/connect+json")


class ClientGone(Exception):
    """The client has closed its connection; nobody reads an answer."""


class Request:
    """One HTTP request, and the way to answer it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, idle_timeout_s: float) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: HeaderList = scope["headers"]
        self.scope = scope
        self._receive = receive
        self._send = send
        self._idle_timeout_s = idle_timeout_s
        self._body_ended = False
        self.started = False
        """Whether the answer has begun."""

    def header(self, name: bytes) -> str | None:
        """The value of a header. Raises InvalidRequest if it is there twice."""
        return header(self.headers, name)

    def query(self) -> dict[str, str]:
        """The fields of the query. Raises InvalidRequest for a name that is there twice."""
        try:
            fields = parse_qsl(
                self.scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS
            )
        except ValueError:
            raise InvalidRequest("the query cannot be read") from None
        found = dict(fields)
        if len(found) < len(fields):
            raise InvalidRequest("a field of the query is there twice")
        return found

    async def chunks(self, limit_bytes: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes. Raises HttpError 413 past the limit, 408 for a client that stalls, and ClientGone."""
        received = 0
        while not self._body_ended:
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    message = await self._receive()
            except TimeoutError:
                raise HttpError(408, f"nothing was sent for {self._idle_timeout_s:g} s") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._body_ended = not message.get("more_body", False)
            data: bytes = message.get("body", b"")
            received += len(data)
            if limit_bytes is not None and received > limit_bytes:
                raise HttpError(413, f"the body is longer than {limit_bytes} bytes")
            if data:
                yield data

    async def body(self, limit_bytes: int) -> bytes:
        """The whole body, within the limit. Raises as `chunks` does."""
        return b"".join([each async for each in self.chunks(limit_bytes)])

    async def json(self, limit_bytes: int) -> connect.JsonObject:
        """The body as a JSON object. Raises InvalidRequest, and as `chunks` does."""
        return connect.load(await self.body(limit_bytes))

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin the answer."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the answer."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole answer."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.write(body, more=False)

    async def answer_json(self, value: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send an answer in JSON."""
        await self.answer(status, connect.dump(value), [JSON, *headers])

    async def answer_error(self, error: HttpError | RpcError, status: int) -> None:
        """Send an error, unless the answer has begun: then it breaks off, which clients notice."""
        if not self.started:
            await self.answer_json(error.body, status, getattr(error, "headers", ()))

    async def disconnected(self) -> None:
        """Return when the client has gone. Only after the whole body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @asynccontextmanager
    async def while_connected(self) -> AsyncIterator[None]:
        """Cancel the block when the client goes, which then raises ClientGone."""
        task = asyncio.current_task()
        assert task is not None
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            await self.disconnected()
            is_gone = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if is_gone and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            watcher.cancel()
