"""The gateway's ASGI application: its own few paths, and the faces."""

from __future__ import annotations

import json
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.server import openapi
from dutyfree.server.e2b.app import E2BApp
from dutyfree.server.e2b.http import Receive, Scope, Send
from dutyfree.server.gateway.access import NodeAccess

OPENAPI_PATH: Final = "/openapi.json"
METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/health"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayApp:
    """Health and the OpenAPI document for all, metrics for operators; everything else belongs to a face."""

    def __init__(self, access: NodeAccess, e2b: E2BApp) -> None:
        self._access = access
        self._e2b = e2b

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = scope["type"] == "http" and scope["method"] == "GET" and not self._names_sandbox(scope)
        if own and scope["path"] == HEALTH_PATH:
            await self._health(send)
        elif own and scope["path"] == METRICS_PATH:
            await self._metrics(scope, send)
        elif own and scope["path"] == OPENAPI_PATH:
            await _answer(send, 200, json.dumps(openapi.document()).encode(), b"application/json")
        else:
            await self._e2b(scope, receive, send)

    @staticmethod
    def _names_sandbox(scope: Scope) -> bool:
        return any(name == b"e2b-sandbox-id" for name, _ in scope["headers"])

    async def _health(self, send: Send) -> None:
        """200 while the node answers."""
        try:
            await self._access.check()
        except DutyfreeError:
            await _answer(send, 503, b"the node does not answer\n")
        else:
            await _answer(send, 200, b"ok\n")

    async def _metrics(self, scope: Scope, send: Send) -> None:
        token = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        try:
            text = await self._access.metrics(token.removeprefix("Bearer "))
        except DutyfreeError:
            await _answer(send, 401, b"metrics need an operator's token\n")
        else:
            await _answer(send, 200, text.encode(), _TEXT)


async def _answer(send: Send, status: int, body: bytes, kind: bytes = b"text/plain; charset=utf-8") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
