"""The node: one host with its leases, what it remembers, and the clients that use it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

from dutyfree import __version__
from dutyfree.client.local import LocalHost, watch_ends
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest, SubstrateFailed
from dutyfree.leases.table import Lease
from dutyfree.protocol.forms import HostFacts
from dutyfree.server.logs import LOGGER
from dutyfree.server.node.caller import RESUME_S, Caller
from dutyfree.server.node.calls import Calls
from dutyfree.server.node.identity import Identity, refused
from dutyfree.server.node.rules import Rules
from dutyfree.server.node.snapshots import SnapshotTable
from dutyfree.server.node.state import State

RELEASE_S: Final = 60.0
MAX_CLIENTS: Final = 20_000
"""Also those that were lost a moment ago."""
_MINUTE_S: Final = 60.0
REVOKE_EVERY_S: Final = 0.5
"""How often the node looks whether tokens of its clients were revoked."""


class Node:
    """Serves `host`, which must be open, until the end of its `async with` block."""

    def __init__(
        self,
        host: LocalHost,
        state: State,
        *,
        rules: Rules | None = None,
        gateway_token: str | None = None,
        image: str | None = None,
        resume_s: float = RESUME_S,
    ) -> None:
        """With `gateway_token`, a client may speak for all owners. Leases that name no image start from `image`.

        `resume_s`: how long lost clients are waited for.
        """
        self.host = host
        self.records = state
        self.rules = rules if rules is not None else Rules()
        self.snapshots = SnapshotTable()
        self.image = image
        self.resume_s = resume_s
        self.lost = 0
        """Leases that an earlier life of the node has left behind."""
        self._gateway_token = gateway_token
        self._calls = Calls(self)
        self._callers: dict[str, Caller] = {}
        self._counts: dict[str, int] = {}
        """Leases of each owner, those that are being made included."""
        self._owners: dict[str, str] = {}
        """The owners of leases that last."""
        self._begun: dict[str, deque[float]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._revoking: asyncio.Task[None] | None = None
        self._drains = False
        self._emptied = asyncio.Event()
        """Set when the last lease has ended."""

    async def __aenter__(self) -> Self:
        self.lost = self.records.recover()
        watch_ends(self.host, self._ended)
        self._revoking = asyncio.create_task(self._end_revoked())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._revoking is not None:
            self._revoking.cancel()
        for caller in tuple(self._callers.values()):
            caller.end()
        if self._endings:
            await asyncio.wait(self._endings, timeout=RELEASE_S)

    # Clients.

    def authenticate(self, token: str) -> Identity:
        """Whose token it is. Raises Unauthenticated."""
        return self.records.identify(token)

    def identify(self, token: str, *, trusted: bool = False) -> Identity:
        """Who a new client is; `trusted` are those on this machine who may use it without a token."""
        if self._gateway_token is not None and secrets.compare_digest(token.encode(), self._gateway_token.encode()):
            return Identity("", is_gateway=True)
        if not token and trusted:
            return Identity("local")
        return self.authenticate(token) if token else _refuse()

    def welcome(self, identity: Identity) -> Caller:
        """A new client. Raises CapacityError."""
        if len(self._callers) >= MAX_CLIENTS:
            raise CapacityError(f"this node has {MAX_CLIENTS} clients already", retry_after_s=self.resume_s)
        caller = Caller(self, identity, self._calls, self._left)
        self._callers[caller.id] = caller
        return caller

    def returned(self, caller_id: str, identity: Identity) -> Caller | None:
        """A client that was here before, and has the same token; None if it is not known any more."""
        caller = self._callers.get(caller_id)
        return caller if caller is not None and caller.identity == identity else None

    async def _end_revoked(self) -> None:
        """End clients whose token was revoked while they were here; when they come back, they are refused."""
        before = self.records.changes()
        while True:
            await asyncio.sleep(REVOKE_EVERY_S)
            try:
                if (now := self.records.changes()) != before:
                    before, valid = now, self.records.token_hashes()
                    for caller in tuple(self._callers.values()):
                        if caller.identity.token_hash and caller.identity.token_hash not in valid:
                            caller.end()
            except SubstrateFailed as error:  # the database is locked for a moment
                LOGGER.warning("revoked tokens cannot be looked for: %s", error)

    def _left(self, caller: Caller) -> None:
        self._callers.pop(caller.id, None)
        for lease_id in caller.ends_with_it:
            ending = asyncio.get_running_loop().create_task(self._release(lease_id))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _release(self, lease_id: str) -> None:
        try:
            await self.host.release(lease_id)
        except DutyfreeError as error:
            if not isinstance(error, SubstrateFailed):
                return  # it has ended already
            context = {"message": f"lease {lease_id} of a client that left could not be ended", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    # Leases.

    @contextmanager
    def admitted(self, identity: Identity, owner: str) -> Iterator[None]:
        """Count a lease of the owner while it is made. Raises CapacityError past the owner's limits."""
        if identity.is_gateway:
            identity = self.records.limits(owner)
        if self._drains:
            raise CapacityError("this node gives out no more leases: it is about to stop", retry_after_s=5.0)
        if identity.max_sandboxes is not None and self._counts.get(owner, 0) >= identity.max_sandboxes:
            hint = "close some of them, or ask the operator for more"
            message = f"{identity.max_sandboxes} sandboxes of this owner are in use already"
            raise CapacityError(message, hint=hint, retry_after_s=1.0)
        self._check_rate(identity, owner)
        self._counts[owner] = self._counts.get(owner, 0) + 1
        try:
            yield
        finally:
            self._count_down(owner)

    def _check_rate(self, identity: Identity, owner: str) -> None:
        if identity.leases_per_minute is None:
            return
        now_s = time.monotonic()
        begun = self._begun.setdefault(owner, deque())
        while begun and now_s - begun[0] >= _MINUTE_S:
            begun.popleft()
        if len(begun) >= identity.leases_per_minute:
            wait_s = _MINUTE_S - (now_s - begun[0])
            message = f"this owner has begun {len(begun)} leases within a minute; more are not allowed"
            raise CapacityError(message, retry_after_s=wait_s)
        begun.append(now_s)

    def began(self, lease: Lease) -> None:
        """Remember a lease that its client is about to get."""
        if lease.id not in self._owners:
            self._owners[lease.id] = lease.owner
            self._counts[lease.owner] = self._counts.get(lease.owner, 0) + 1
            self.records.began(lease)

    def _ended(self, lease: Lease, how: str) -> None:
        owner = self._owners.pop(lease.id, None)
        if owner is not None:
            self._count_down(owner)
        if not self._owners:
            self._emptied.set()
        self.records.began(lease)
        self.records.ended(lease.id, how)
        for caller in self._callers.values():
            caller.forget(lease.id)

    def _count_down(self, owner: str) -> None:
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]

    async def drain(self, within_s: float) -> None:
        """Give out no more leases, and wait until those that last have ended, but no longer than `within_s`."""
        self._drains = True
        self._emptied.clear()
        if self._owners:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), within_s)

    # What clients may know.

    def facts(self) -> HostFacts:
        """The host as clients see it."""
        host = self.host
        capabilities = self.rules.allowed(host.capabilities)
        return HostFacts(host.substrate, host.isolation, capabilities, host.has_default_image, __version__)

    def status(self) -> dict[str, Any]:
        """For operators."""
        counts = {"clients": len(self._callers), "leases": len(self._owners), "owners": len(self._counts)}
        try:
            return {**counts, "prometheus": self.host.pool.status().prometheus()}
        except InvalidRequest:  # without a pool
            return {**counts, "prometheus": ""}


def _refuse() -> Identity:
    raise refused()
