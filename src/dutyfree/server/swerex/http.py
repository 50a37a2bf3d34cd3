"""What the face needs of HTTP, over ASGI: bounded bodies, and answers in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class ClientGone(Exception):
    """The client has closed its connection before its body had come."""


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header. Raises Refused if it is there twice."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise Refused(400, f"the header {name.decode()} is there twice")
    return found[0].decode("latin-1") if found else None


async def chunks(receive: Receive, limit_bytes: int) -> AsyncIterator[bytes]:
    """The body as it comes. Raises Refused past the limit, and ClientGone."""
    left_bytes = limit_bytes
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        data: bytes = message.get("body", b"")
        left_bytes -= len(data)
        if left_bytes < 0:
            raise Refused(413, f"the body has more than {limit_bytes} bytes")
        more = message.get("more_body", False)
        if data:
            yield data


async def body(receive: Receive, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises Refused past the limit or the time, and ClientGone."""
    try:
        async with asyncio.timeout(timeout_s):
            return b"".join([each async for each in chunks(receive, limit_bytes)])
    except TimeoutError:
        raise Refused(408, f"the body has not come in {timeout_s:g} s") from None


async def answer(send: Send, status: int, content: bytes, method: str) -> None:
    """Send an answer in JSON; only its head if that was asked for."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else content})
