"""A server with the E2B face on the loopback, over cells of this process: in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

import dutyfree
from dutyfree.server.access import StaticAccess
from dutyfree.server.e2b import E2BApp, Settings
from dutyfree.server.listening import http_config

ANN, BOB = f"e2b_{'a' * 40}", f"e2b_{'b' * 40}"
"""Some versions of the SDK check the form of a key: e2b_ and hexadecimal digits."""
TOKENS = {ANN: "ann", BOB: "bob"}


@dataclass
class E2BServer:
    """A server that runs: one host, and one or more gateways in front of it."""

    ports: list[int] = field(default_factory=list)
    servers: list[uvicorn.Server] = field(default_factory=list)
    error: BaseException | None = None
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Of the first gateway."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Of every gateway."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def serve(self, gateways: int, settings: Settings | None, options: dict[str, Any]) -> None:
        """Open the host, and serve until all servers were told to end."""
        async with dutyfree.local(**options) as host:
            serving = []
            for _ in range(gateways):
                app = E2BApp(StaticAccess(host, TOKENS), settings)
                addresses = {"host": "127.0.0.1", "port": 0, "log_level": "error", "timeout_graceful_shutdown": 3}
                server = uvicorn.Server(http_config(app, app.websocket_protocol, **addresses))
                serving.append(asyncio.create_task(server.serve()))
                self.servers.append(server)
                while not server.started and not serving[-1].done():  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.005)
                self.ports.append(server.servers[0].sockets[0].getsockname()[1])
            self.ready.set()
            await asyncio.gather(*serving)


@contextmanager
def e2b_server(settings: Settings | None = None, *, gateways: int = 1, **options: Any) -> Iterator[E2BServer]:
    """Serve until the end of the block; `options` are those of the host."""
    server = E2BServer()

    def run() -> None:
        try:
            asyncio.run(server.serve(gateways, settings, options))
        except BaseException as error:
            server.error = error
        server.ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert server.ready.wait(60)
        if server.error is None:
            yield server
    finally:
        for each in server.servers:
            each.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
    if server.error is not None:
        raise server.error
