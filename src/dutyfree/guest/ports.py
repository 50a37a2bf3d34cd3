"""The ports of a sandbox: connections to and from its programs, and a list of those that listen."""

from __future__ import annotations

import errno
from typing import Final

from dutyfree.contract import Connection, Datagrams, Listener
from dutyfree.errors import SubstrateFailed, Unsupported
from dutyfree.guest.applets import applet_request
from dutyfree.guest.connections import GuestConnection, GuestDatagrams, GuestListener
from dutyfree.guest.exchanges import Collected
from dutyfree.guest.runner import Runner
from dutyfree.model import ListeningPort
from dutyfree.wire.records import decode_ports

_LIST_TIMEOUT_S: Final = 10.0
_LIST_LIMIT_BYTES: Final = 512 * 1024


class Ports:
    """Those of one sandbox, through whichever guest its runner has now."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._listeners: set[GuestListener] = set()

    async def dial(self, address: str, port: int, timeout_s: float) -> Connection:
        """A connection to a port."""
        return await GuestConnection.dial(self._runner, address, port, timeout_s)

    async def listen(self, address: str, port: int) -> Listener:
        """Listen on a port."""
        listener = await GuestListener.open(self._runner, address, port)
        self._listeners = {each for each in self._listeners if each.alive} | {listener}
        return listener

    async def datagrams(self, address: str, port: int) -> Datagrams:
        """A UDP socket."""
        return await GuestDatagrams.open(self._runner, address, port)

    async def listening(self) -> list[ListeningPort]:
        """Where programs listen, without where the guest does so for the host."""
        exchange = Collected(_LIST_LIMIT_BYTES, self._runner.known_limits)
        request = applet_request(
            ("ports",),
            takes_input=False,
            timeout_s=_LIST_TIMEOUT_S,
            credit_bytes=exchange.output_credit_bytes,
            output_limit_bytes=_LIST_LIMIT_BYTES,
        )
        end = await self._runner.collect(exchange, request, stdin=None, timeout_s=_LIST_TIMEOUT_S)
        if end.exit_code == errno.ENOENT:
            raise Unsupported("the kernel of this sandbox does not list its ports: it has no /proc/net/tcp")
        if end.exit_code != 0 or exchange.truncated:
            raise SubstrateFailed(f"the ports of the sandbox cannot be listed (exit code {end.exit_code})")
        own = {listener.local for listener in self._listeners if listener.alive}
        return sorted({each for each in decode_ports(bytes(exchange.stdout)) if (each.address, each.port) not in own})
