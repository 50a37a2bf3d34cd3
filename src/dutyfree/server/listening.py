"""How gateways listen: the settings of uvicorn that all faces share, and the limits on requests that it lacks."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KEEP_ALIVE_S: Final = 650
"""Longer than clients keep an idle connection (E2B's: 300 s), so that they, and not the server, close it."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""The most bytes of a request before its body."""
HEAD_TIMEOUT_S: Final = 30.0
"""How long a client may take for that, from its connection or from the first byte of a later request."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on the size of a request's head, and on the time that it takes."""

    _in_head = True
    _received_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._received_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the head of the request is too long")

    def on_message_begin(self) -> None:
        self._in_head, self._received_bytes = True, 0
        if self._deadline is None:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MAX_HEAD_BYTES:
            raise ValueError("the head of the request is too long")  # which becomes the answer 400
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


def http_config(app: Any, websocket_protocol: type[asyncio.Protocol] | None = None, **settings: Any) -> uvicorn.Config:
    """The configuration of a server for an ASGI application; `settings` go to uvicorn as they are.

    asyncio sets TCP_NODELAY on every connection, so that small answers are not held back.
    """
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws=websocket_protocol if websocket_protocol is not None else "none",
        timeout_keep_alive=KEEP_ALIVE_S,
        access_log=False,
        server_header=False,
        date_header=False,
        log_config=None,
        **settings,
    )
