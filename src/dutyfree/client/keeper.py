"""What boxes need of their host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dutyfree.leases.table import Lease
from dutyfree.pool.grants import Grant


class LeaseKeeper(Protocol):
    """The part of a host that its boxes need; `pool.Pool` implements it."""

    def renew(self, grant: Grant, ttl_s: float | None = None) -> Lease:
        """Set the expiry of the lease to `ttl_s` from now. Raises LeaseLost if it has ended."""

    def set_labels(self, grant: Grant, labels: Mapping[str, str]) -> Lease:
        """Replace the labels of the lease. Raises LeaseLost if it has ended."""

    async def release(self, grant: Grant) -> None:
        """End the lease. Idempotent."""

    async def reserve_forks(self, grant: Grant, count: int) -> None:
        """Reserve places for forks within the host's limits. Raises CapacityError."""

    def forks_ended(self, grant: Grant, count: int) -> None:
        """Free the places of forks that have ended or could not be made."""
