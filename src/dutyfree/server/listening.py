"""How gateways listen: the settings of uvicorn that all faces share."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn

KEEP_ALIVE_S: Final = 650
"""Longer than clients keep an idle connection (E2B's: 300 s), so that they, and not the server, close it."""


def http_config(app: Any, websocket_protocol: type[asyncio.Protocol] | None = None, **settings: Any) -> uvicorn.Config:
    """The configuration of a server for an ASGI application; `settings` go to uvicorn as they are.

    asyncio sets TCP_NODELAY on every connection, so that small answers are not held back.
    """
    return uvicorn.Config(
        app,
        http="httptools",
        ws=websocket_protocol if websocket_protocol is not None else "none",
        timeout_keep_alive=KEEP_ALIVE_S,
        access_log=False,
        server_header=False,
        date_header=False,
        log_config=None,
        **settings,
    )
