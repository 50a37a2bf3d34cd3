"""A gateway's process: `python -m dutyfree.server.gateway.main`, started by the supervisor."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import uvicorn

from dutyfree.errors import DutyfreeError
from dutyfree.remote.host import connect
from dutyfree.server.child import Order, read_order
from dutyfree.server.e2b import E2BApp
from dutyfree.server.e2b.settings import Settings as E2BSettings
from dutyfree.server.gateway.access import NodeAccess
from dutyfree.server.gateway.app import GatewayApp
from dutyfree.server.listening import http_config
from dutyfree.server.logs import LOGGER, log_to_stderr
from dutyfree.server.settings import Settings
from dutyfree.server.swerex import SwerexApp
from dutyfree.server.swerex.settings import Settings as SwerexSettings

CLOSE_S = 5


async def serve(order: Order) -> None:
    """Serve until SIGTERM. A node that is gone for good ends the gateway, which is then started again."""
    settings = order.settings()
    listening = order.listening("http")
    assert listening is not None
    async with connect(f"unix:{settings.socket}", token=order.gateway_token) as host:
        access = NodeAccess(host)
        e2b = E2BApp(access, e2b_settings(settings))
        swerex = SwerexApp(access, SwerexSettings(image=settings.image, network=settings.rules.networks[0]))
        config = http_config(
            GatewayApp(access, e2b, swerex),
            e2b.websocket_protocol,
            lifespan="off",
            timeout_graceful_shutdown=CLOSE_S,
            ssl_certfile=None if settings.certificate is None else str(settings.certificate),
            ssl_keyfile=None if settings.key is None else str(settings.key),
        )
        server = Server(config, order)
        serving, lost = asyncio.create_task(server.serve(sockets=[listening])), asyncio.create_task(access.lost())
        await asyncio.wait({serving, lost}, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        server.should_exit = True
        await serving


class Server(uvicorn.Server):
    """Says to the supervisor when it serves."""

    def __init__(self, config: uvicorn.Config, order: Order) -> None:
        super().__init__(config)
        self._order = order

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await super().startup(sockets)
        self._order.say_ready()
        LOGGER.info("the gateway serves")


def e2b_settings(settings: Settings) -> E2BSettings:
    """What of the server's settings is the E2B face's."""
    return E2BSettings(
        domain=settings.domain or None,
        internet=settings.rules.egress,
        files_only=settings.allow_filesystem_snapshots,
    )


def main() -> None:
    """Read the order, and serve."""
    log_to_stderr("gateway")
    order = read_order()
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(order))
    except DutyfreeError as error:
        LOGGER.error("the gateway cannot serve: %s", error)
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
