"""The gateway's ASGI application: its own few paths, and the faces."""

from __future__ import annotations

import json
from typing import Final

from dutyfree.errors import DutyfreeError
from dutyfree.server import openapi
from dutyfree.server.e2b.app import E2BApp
from dutyfree.server.e2b.http import Receive, Scope, Send
from dutyfree.server.gateway.access import NodeAccess
from dutyfree.server.swerex import SwerexApp

OPENAPI_PATH: Final = "/openapi.json"
METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/health"
_TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayApp:
    """Health and the OpenAPI document for all, metrics for operators; everything else belongs to a face."""

    def __init__(self, access: NodeAccess, e2b: E2BApp, swerex: SwerexApp) -> None:
        self._access = access
        self._e2b = e2b
        self._swerex = swerex

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._e2b.names_sandbox(scope):
            await self._e2b(scope, receive, send)
        elif scope["path"] == HEALTH_PATH and scope["method"] == "GET":
            await self._health(send)
        elif scope["path"] == METRICS_PATH and scope["method"] == "GET":
            await self._metrics(scope, send)
        elif scope["path"] == OPENAPI_PATH and scope["method"] == "GET":
            await _answer(send, 200, json.dumps(openapi.document()).encode(), b"application/json")
        elif self._swerex.claims(scope):
            await self._swerex(scope, receive, send)
        else:
            await self._e2b(scope, receive, send)

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
