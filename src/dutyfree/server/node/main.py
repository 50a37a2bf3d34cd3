"""The node's process: `python -m dutyfree.server.node.main`, started by the supervisor."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

from dutyfree.client.local import LocalHost
from dutyfree.errors import DutyfreeError
from dutyfree.server.child import Order, read_order
from dutyfree.server.logs import LOGGER, log_to_stderr
from dutyfree.server.node.listener import Listener
from dutyfree.server.node.node import Node
from dutyfree.server.node.state import State
from dutyfree.server.settings import Settings

WARM_EVERY_S = 1.0
ORPHANED_EVERY_S = 0.2


async def serve(order: Order) -> None:
    """Serve until SIGTERM, or SIGINT, and then drain."""
    settings = order.settings()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    tls = settings.tls()
    state = State(settings.directory / "state.sqlite")
    try:
        async with (
            LocalHost(settings.substrate, pool=settings.pool, **settings.options) as host,
            Node(host, state, rules=settings.rules, image=settings.image, gateway_token=order.gateway_token) as node,
        ):
            listener = Listener(node)
            if (local := order.listening("socket")) is not None:
                await listener.serve(local)
            if (native := order.listening("native")) is not None:
                await listener.serve(native, tls)
            warming = asyncio.create_task(_keep_warm(host, settings))
            LOGGER.info("the node serves", extra={"substrate": host.substrate, "lost_leases": node.lost})
            order.say_ready()
            await stopped.wait()
            warming.cancel()
            await _drain(node, order, settings.drain_s)
            await listener.close()
    finally:
        state.close()
    LOGGER.info("the node has stopped")


async def _drain(node: Node, order: Order, within_s: float) -> None:
    """Wait until leases have ended, but not without the supervisor: the next server waits for this one's end."""
    draining = asyncio.create_task(node.drain(within_s))
    while not draining.done() and not order.is_orphaned:
        await asyncio.wait({draining}, timeout=ORPHANED_EVERY_S)
    draining.cancel()


async def _keep_warm(host: LocalHost, settings: Settings) -> None:
    """Announce what is to be kept ready, again and again: requests use announcements up."""
    demand = [(each.image if each.image is not None else settings.image, each.count) for each in settings.warm]
    while demand:
        try:
            await host.pool.announce(demand, name="warm", lasting_s=60 * WARM_EVERY_S)
        except DutyfreeError as error:
            LOGGER.warning("sandboxes cannot be kept ready: %s", error)
            await asyncio.sleep(30 * WARM_EVERY_S)
        await asyncio.sleep(WARM_EVERY_S)


def main() -> None:
    """Read the order, and serve."""
    log_to_stderr("node")
    order = read_order()
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(order))
    except DutyfreeError as error:
        LOGGER.error("the node cannot serve: %s", error)
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
