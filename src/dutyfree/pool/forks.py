"""The places of forks of leased sandboxes, which count against the limits of a pool. Pure: no I/O, no commands."""

from __future__ import annotations

from typing import Generic, TypeVar

from dutyfree.errors import CapacityError
from dutyfree.pool.goal import Goal
from dutyfree.pool.members import Members
from dutyfree.pool.planner_input import Limits, OperationKind

G = TypeVar("G", bound=Goal)


class Forks(Generic[G]):
    """Places are claimed before forks are made, taken once they are free, and freed when the forks have ended."""

    def __init__(self, limits: Limits, members: Members[G]) -> None:
        self._limits = limits
        self._members = members
        self._claims: dict[str, int] = {}
        """The places that are claimed and not taken yet, by leased sandbox."""

    @property
    def claimed(self) -> int:
        """The number of places that are claimed and not taken yet."""
        return sum(self._claims.values())

    def claim(self, sandbox: str, count: int) -> None:
        """Claim places. Raises CapacityError if leases alone fill the pool: no room would become free."""
        limits, leased = self._limits, self._members.leased + self.claimed
        size = self._members.leased_size + self._members.leased_member(sandbox).size * count
        if leased + count > limits.sandboxes or not limits.allow(size):
            message = f"no room for {count} forks: {leased} of {limits.sandboxes} sandboxes are leased"
            raise CapacityError(message, hint="give the pool more sandboxes or memory", retry_after_s=1.0)
        self._claims[sandbox] = self._claims.get(sandbox, 0) + count

    def take(self, sandbox: str, count: int) -> bool:
        """Take the claimed places, if they are free. Returns whether they were; False once the lease has ended."""
        if sandbox not in self._claims:
            return False
        limits, members = self._limits, self._members
        size = members.leased_member(sandbox).size
        if members.count + count > limits.sandboxes or not limits.allow(members.total_size + size * count):
            return False
        self.cancel(sandbox, count)
        members.forks[sandbox] = members.forks.get(sandbox, 0) + count
        return True

    def cancel(self, sandbox: str, count: int) -> None:
        """Give up places that were claimed and not taken."""
        left = self._claims.pop(sandbox, 0) - count
        if left > 0:
            self._claims[sandbox] = left

    def cancel_all(self, sandbox: str) -> None:
        """Give up all places that were claimed for this sandbox: its lease has ended."""
        self._claims.pop(sandbox, None)

    def ended(self, sandbox: str, count: int) -> bool:
        """Free the places of forks that are gone. Returns False, and does nothing, once the lease has ended."""
        if sandbox not in self._members.forks:
            return False
        self._members.forks[sandbox] -= count
        return True

    def in_the_way(self) -> list[str]:
        """The idle and returned sandboxes that must be destroyed until the claimed places are free.

        Places whose destruction is in progress count as free: they soon will be.
        """
        claimed = self.claimed
        if not claimed:
            return []
        limits, members, ending = self._limits, self._members, 0
        size = members.total_size
        for sandbox, count in self._claims.items():
            size += members.leased_member(sandbox).size * count
        for operation in members.operations:
            if operation.kind is OperationKind.DESTROY:
                ending += 1
                size -= operation.size
        missing = members.count + claimed - limits.sandboxes - ending
        found = []
        for sandbox in members.ids():
            if missing <= 0 and limits.allow(size):
                break
            missing -= 1
            size -= members.member(sandbox).size
            found.append(sandbox)
        return found
