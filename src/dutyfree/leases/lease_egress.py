"""The egress of a lease: one service for its sandbox, and one for each fork."""

from __future__ import annotations

import asyncio

from dutyfree.contract import Sandbox
from dutyfree.egress.service import EgressService
from dutyfree.errors import SandboxGone
from dutyfree.model import Egress


class LeaseEgress:
    """Opens the services of a lease, and closes them at its end."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._services: dict[Sandbox, EgressService] = {}

    async def bind(self, sandbox: Sandbox, parent: Sandbox | None = None) -> None:
        """Serve a sandbox, also again after a reset. A fork begins with the rules that its `parent` has now.

        Raises as `Sandbox.listen` does.
        """
        service = self._services.get(sandbox)
        if service is None:
            service = EgressService(self._egress if parent is None else self.of(parent).egress)
            self._services[sandbox] = service
        else:
            await service.close()
        await service.open(sandbox)

    def of(self, sandbox: Sandbox) -> EgressService:
        """The service of a sandbox. Raises SandboxGone if it has none any more."""
        if sandbox not in self._services:
            raise SandboxGone("this sandbox has ended, and its egress with it")
        return self._services[sandbox]

    async def end(self, sandbox: Sandbox) -> None:
        """Serve the sandbox no longer. Its journal can still be read."""
        if (service := self._services.get(sandbox)) is not None:
            await service.close()

    async def close(self) -> None:
        """Serve no sandbox any longer. Idempotent."""
        await asyncio.gather(*(service.close() for service in self._services.values()))
