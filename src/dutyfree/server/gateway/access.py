"""A gateway's access to its node: the node knows tokens and owners."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Final

from dutyfree.client.box import Box
from dutyfree.codec.values import optional, text
from dutyfree.errors import SubstrateFailed, Unauthenticated
from dutyfree.remote.host import RemoteHost, connection_of
from dutyfree.server.access import HostAccess, LostLease, no_lease

TRUSTED_S: Final = 1.0
"""How long a token that was valid is not asked about again: so long may a revoked one still work."""
MAX_TRUSTED: Final = 4096
CHECK_S: Final = 5.0


class NodeAccess(HostAccess):
    """The `Access` of faces, over a connection that may speak for all owners."""

    def __init__(self, host: RemoteHost) -> None:
        super().__init__(host)
        self._node = host
        self._trusted: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """Owners by the hash of their token, with the time until which that holds."""

    async def owner(self, token: str) -> str:
        """The owner of a token. Raises Unauthenticated."""
        if not token:
            raise Unauthenticated("the token is missing or wrong")
        key = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        known = self._trusted.get(key)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        try:
            answer, _ = await connection_of(self._node).call("authenticate", token=token)
        except Unauthenticated:
            self._trusted.pop(key, None)
            raise Unauthenticated("the token is missing or wrong") from None
        owner = answer.required("owner", text)
        self._trusted[key] = (owner, time.monotonic() + TRUSTED_S)
        while len(self._trusted) > MAX_TRUSTED:
            self._trusted.popitem(last=False)
        return owner

    async def check(self) -> None:
        """Ask the node for a sign of life. Raises LinkFailed, DeadlineExceeded."""
        await connection_of(self._node).call("host", limit_s=CHECK_S)

    async def metrics(self, token: str) -> str:
        """The node's metrics for Prometheus, if the token is an operator's. Raises Unauthenticated, Unsupported."""
        answer, _ = await connection_of(self._node).call("metrics", token=token)
        return answer.required("prometheus", text)

    async def lost(self) -> None:
        """Return when the node is lost for good."""
        await connection_of(self._node).wait_lost()

    async def box(self, owner: str, lease_id: str) -> Box:
        """The box of a lease of this owner. Raises LeaseLost, and LostLease for one that ended with its node."""
        try:
            return await super().box(owner, lease_id)
        except LostLease as lost:
            if await self._owner_of_lost(lease_id) == owner:
                raise
            raise no_lease(lease_id) from lost

    async def box_of_any_owner(self, lease_id: str) -> Box:
        """The box of a lease. Raises LeaseLost, and LostLease for one that ended with its node."""
        try:
            return await super().box_of_any_owner(lease_id)
        except SubstrateFailed as error:  # or the node is being started again
            if await self._owner_of_lost(lease_id) is None:
                raise
            raise LostLease(error.message) from None

    async def _owner_of_lost(self, lease_id: str) -> str | None:
        """Whose lease it was; None for one that was not lost."""
        answer, _ = await connection_of(self._node).call("lost", lease=lease_id)
        return answer.required("owner", optional(text))
