"""What a box shows of its egress: the rules, which can be changed, and the journal."""

from __future__ import annotations

from dutyfree.contract import Sandbox
from dutyfree.leases.fence import Fence
from dutyfree.leases.lease_egress import LeaseEgress
from dutyfree.model import Egress, EgressRecord


class BoxEgress:
    """The egress of one box. The journal can be read after the end of the lease, too."""

    def __init__(self, services: LeaseEgress, sandbox: Sandbox, fence: Fence) -> None:
        self._service = services.of(sandbox)
        self._fence = fence

    @property
    def rules(self) -> Egress:
        """The rules of the moment."""
        return self._service.egress

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not work in this sandbox, with the reason; empty if all does.

        Without a resolver, programs that read no proxy variables reach nothing.
        """
        return self._service.notes

    @property
    def dropped(self) -> int:
        """How many records the journal has dropped: it keeps the last 10,000 allowed and 10,000 refused ones."""
        return self._service.dropped

    def journal(self) -> list[EgressRecord]:
        """Every connection, allowed or refused, oldest first; those that last are in it, too."""
        return self._service.journal()

    async def set(self, egress: Egress) -> None:
        """Change the rules of this box. Connections that the new ones do not allow are closed.

        A fork begins with the rules that its parent has at that moment; a reset keeps them. `max_connections` cannot be
        changed. Raises InvalidRequest, and LeaseLost once the lease has ended.
        """
        async with self._fence:
            self._service.set(egress)
