"""The resolver of one sandbox, for programs that read no proxy variables.

An allowed name gets an address of the sandbox's own loopback, on which the guest listens before the answer goes out.
The name is looked up only when a program connects. Other names do not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

from dutyfree.egress import dns
from dutyfree.egress.gate import Gate
from dutyfree.egress.rules import NO_RULE
from dutyfree.errors import DutyfreeError
from dutyfree.model.hostname import parse_host

if TYPE_CHECKING:
    from dutyfree.contract import Connection, Datagrams

FIRST_ADDRESS: Final = IPv4Address("127.64.1.1")
MAX_NAMES: Final = 64
"""Names that get an address in one sandbox: each listener takes some of the guest's 4,096 actions."""
MAX_LISTENERS: Final = 128
TCP_TIMEOUT_S: Final = 10.0
_MAX_TCP_QUERIES: Final = 100
Listen = Callable[[str, str, int], Awaitable[None]]
"""Begins to listen for a name on an address and port of the sandbox. Raises DutyfreeError."""


class Resolver:
    """Answers questions about names, and has the guest listen for those that are allowed."""

    def __init__(self, gate: Gate, listen: Listen) -> None:
        self._gate = gate
        self._listen = listen
        self._addresses: dict[str, IPv4Address] = {}
        self._listening: set[tuple[str, int]] = set()
        self._lock = asyncio.Lock()

    async def answer(self, data: bytes) -> bytes | None:
        """The answer to a datagram; None for what is no question."""
        query = dns.parse_query(data)
        if query is None:
            return None
        try:
            name = parse_host(query.name)
        except ValueError:
            name = IPv4Address(0)
        ports = self._gate.rules.ports_of(name) if isinstance(name, str) else ()
        if not isinstance(name, str) or not ports:
            self._gate.refuse("dns", query.name, 0, NO_RULE)
            return dns.answer(query, dns.Code.NO_SUCH_NAME)
        if query.kind != dns.Kind.A:
            return dns.answer(query, dns.Code.OK)
        try:
            address = await self._ready(name, ports)
        except DutyfreeError as error:
            self._gate.refuse("dns", name, 0, f"cannot listen: {error.message}")
            return dns.answer(query, dns.Code.FAILED)
        if address is None:
            self._gate.refuse("dns", name, 0, f"more than {MAX_NAMES} names were looked up")
            return dns.answer(query, dns.Code.REFUSED)
        return dns.answer(query, dns.Code.OK, address)

    async def serve_datagrams(self, datagrams: Datagrams) -> None:
        """Answer datagrams until the socket ends."""
        while True:
            data, sender = await datagrams.receive()
            if (answer := await self.answer(data)) is not None:
                await datagrams.send(answer, sender)

    async def serve_stream(self, connection: Connection) -> None:
        """Answer the questions of one TCP connection."""
        held = b""
        try:
            async with asyncio.timeout(TCP_TIMEOUT_S):
                for _ in range(_MAX_TCP_QUERIES):
                    while len(held) < 2 or len(held) < 2 + int.from_bytes(held[:2]):
                        data = await connection.read(dns.MAX_QUERY_BYTES + 2)
                        if not data:
                            return
                        held += data
                    length = int.from_bytes(held[:2])
                    answer, held = await self.answer(held[2 : 2 + length]), held[2 + length :]
                    if answer is None:
                        return
                    await connection.write(len(answer).to_bytes(2) + answer)
        except (TimeoutError, DutyfreeError, OSError):
            return
        finally:
            await connection.close()

    async def _ready(self, name: str, ports: tuple[int, ...]) -> IPv4Address | None:
        """The address of the name, on which the guest listens; None if there are too many. Raises DutyfreeError."""
        async with self._lock:
            address = self._addresses.get(name)
            if address is None:
                if len(self._addresses) >= MAX_NAMES:
                    return None
                address = FIRST_ADDRESS + len(self._addresses)
                self._addresses[name] = address
            for port in ports:
                if (name, port) not in self._listening:
                    if len(self._listening) >= MAX_LISTENERS:
                        return None
                    await self._listen(name, str(address), port)
                    self._listening.add((name, port))
            return address
