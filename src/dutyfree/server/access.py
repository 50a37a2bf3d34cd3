"""Who may do what: from a token to its owner, and from an owner to its leases."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from dutyfree.client.box import Box
from dutyfree.client.host import Host
from dutyfree.errors import LeaseLost, SubstrateFailed, Unauthenticated
from dutyfree.leases.table import Lease


class Access(Protocol):
    """What a face needs to know about its callers. All of its answers about a lease of another owner are "no lease"."""

    @property
    def host(self) -> Host:
        """The host behind the face."""

    async def owner(self, token: str) -> str:
        """The owner that a token stands for. Raises Unauthenticated for a wrong one."""

    async def box(self, owner: str, lease_id: str) -> Box:
        """The box of a lease of this owner. Raises LeaseLost for any other id, with the same words."""

    async def box_of_any_owner(self, lease_id: str) -> Box:
        """The box of a lease. Only for callers that then check a secret of the lease itself. Raises LeaseLost."""

    async def leases(self, owner: str, labels: Mapping[str, str] | None = None) -> list[Lease]:
        """The leases of this owner that have all of these labels, oldest first."""


class HostAccess:
    """What every access has of its host. How a token becomes an owner is up to each."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def host(self) -> Host:
        """The host behind the face."""
        return self._host

    async def box(self, owner: str, lease_id: str) -> Box:
        """The box of a lease of this owner. Raises LeaseLost."""
        box = await self.box_of_any_owner(lease_id)
        if box.lease.owner != owner:
            raise no_lease(lease_id)
        return box

    async def box_of_any_owner(self, lease_id: str) -> Box:
        """The box of a lease. Raises LeaseLost."""
        try:
            return await self._host.get(lease_id)
        except LeaseLost:
            raise no_lease(lease_id) from None

    async def leases(self, owner: str, labels: Mapping[str, str] | None = None) -> list[Lease]:
        """The leases of this owner that have all of these labels."""
        return await self._host.find_leases(owner=owner, labels=labels)


class StaticAccess(HostAccess):
    """Access by a fixed table of tokens and their owners: for tests, and for a face inside a program."""

    def __init__(self, host: Host, tokens: Mapping[str, str]) -> None:
        super().__init__(host)
        self._tokens = {token.encode(): owner for token, owner in tokens.items()}

    async def owner(self, token: str) -> str:
        """The owner that a token stands for; compares with every token, in constant time."""
        given, found = token.encode("utf-8", "replace"), None
        for known, owner in self._tokens.items():
            if hmac.compare_digest(known, given):
                found = owner
        if found is None:
            raise Unauthenticated("the token is missing or wrong")
        return found


class LostLease(SubstrateFailed):
    """The lease was one of the caller's, and ended with its node. It stays in the server: clients get words for it."""


def no_lease(lease_id: str) -> LeaseLost:
    """The one error for a lease that is not there, has ended, or belongs to someone else."""
    return LeaseLost(f"there is no lease {lease_id[:80]!r}")
