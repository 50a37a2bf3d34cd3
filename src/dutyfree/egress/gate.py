"""The gate between one sandbox and the outside: it decides, connects, counts and records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dutyfree.egress.connector import Connector, Upstream
from dutyfree.egress.journal import Entry, Journal
from dutyfree.egress.refusal import Refused, Unreachable
from dutyfree.egress.relay import Budget, Filter, Relay
from dutyfree.egress.rules import Rules
from dutyfree.model.egress import Egress
from dutyfree.model.hostname import HostName

if TYPE_CHECKING:
    from dutyfree.contract import Connection


@dataclass(eq=False, slots=True)
class Passage:
    """One connection through the gate."""

    host: HostName
    port: int
    private: bool
    entry: Entry
    upstream: Upstream
    task: asyncio.Task[Any]
    _gate: Gate

    async def carry(
        self, client: Connection, up: Filter, down: Filter, *, head: bytes = b"", first: bytes = b""
    ) -> None:
        """Carry bytes until both sides have ended, `head` before all others. Raises Refused if a filter does."""
        egress = self._gate.rules.egress
        relay = Relay(client, self.upstream.sock, self.entry, self._gate.budget, egress.idle_timeout_s)
        self.entry.finish(await relay.carry(up, down, head=head, first=first, early=self.upstream.early))


class Gate:
    """Decides by the rules of the moment."""

    def __init__(self, egress: Egress, connector: Callable[[Egress], Connector] = Connector) -> None:
        self.rules = Rules(egress)
        self.journal = Journal()
        self.budget = Budget(egress.max_bytes)
        self._make_connector = connector
        self._connector = connector(egress)
        self._open: set[Passage] = set()

    def set(self, egress: Egress) -> None:
        """Change the rules. Connections that they no longer allow are closed. Raises InvalidRequest."""
        self.rules = Rules(egress)
        self._connector = self._make_connector(egress)
        self.budget.limit_bytes = egress.max_bytes
        for passage in self._open:
            decision = self.rules.decide(passage.host, passage.port)
            if not decision.allowed or (passage.private and not decision.private):
                passage.entry.finish("closed by a change of the rules")
                passage.task.cancel()

    @asynccontextmanager
    async def passage(self, how: str, host: HostName, port: int) -> AsyncIterator[Passage]:
        """A connection to the host, if the rules allow it, for the length of the block; it is recorded.

        Raises Refused and Unreachable. A Refused that the block raises is recorded, too.
        """
        entry = Entry(str(host), port, how)
        rules = self.rules
        decision = rules.decide(host, port)
        if not decision.allowed:
            self.journal.refuse(entry, decision.rule)
            raise Refused(f"{host} port {port}: {decision.rule}")
        self.journal.allow(entry, decision.rule)
        try:
            self.budget.check()
            upstream = await self._connector.connect(host, port, private=decision.private)
            entry.address = upstream.address
            task = asyncio.current_task()
            assert task is not None
            passage = Passage(host, port, decision.private, entry, upstream, task, self)
            self._open.add(passage)
            try:
                if self.rules is not rules and self.rules.decide(host, port) != decision:
                    raise Refused("the rules were changed meanwhile")
                yield passage
            finally:
                self._open.discard(passage)
                upstream.sock.close()
        except Refused as refused:
            self.journal.refuse(entry, refused.reason)
            raise Refused(f"{host} port {port}: {refused.reason}", refused.status) from None
        except Unreachable as failure:
            entry.finish(f"failed: {failure.reason}")
            raise
        finally:
            entry.finish("closed")

    def refuse(self, how: str, what: str, port: int, reason: str) -> None:
        """Record a request that is refused before there is a host to decide about."""
        self.journal.refuse(Entry(what, port, how), reason)
