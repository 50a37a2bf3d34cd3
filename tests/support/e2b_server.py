"""A server with the E2B face, on a port of the loopback, over cells of this process: in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

import dutyfree
from dutyfree.server.access import StaticAccess
from dutyfree.server.e2b import E2BApp, Settings
from dutyfree.server.listening import http_config

TOKENS = {"e2b_ann": "ann", "e2b_bob": "bob"}


@dataclass
class E2BServer:
    """A server that runs."""

    url: str
    port: int
    host: dutyfree.LocalHost
    loop: asyncio.AbstractEventLoop

    def options(self, key: str = "e2b_ann") -> dict[str, Any]:
        """The connection options of E2B's SDK."""
        return {"api_url": self.url, "sandbox_url": self.url, "api_key": key}


@contextmanager
def e2b_server(settings: Settings | None = None, **host_options: Any) -> Iterator[E2BServer]:
    """Serve until the end of the block."""
    ready = threading.Event()
    found: list[E2BServer | BaseException] = []
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        async with dutyfree.local(**host_options) as host:
            app = E2BApp(StaticAccess(host, TOKENS), settings)
            config = http_config(
                app, app.websocket_protocol, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=3
            )
            server = uvicorn.Server(config)
            servers.append(server)
            serving = asyncio.create_task(server.serve())
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            found.append(E2BServer(f"http://127.0.0.1:{port}", port, host, asyncio.get_running_loop()))
            ready.set()
            await serving

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            found.insert(0, error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    if not found or isinstance(found[0], BaseException):
        raise RuntimeError(f"the server does not start: {found}")
    try:
        yield found[0]
    finally:
        servers[0].should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        if isinstance(found[0], BaseException):
            raise found[0]
