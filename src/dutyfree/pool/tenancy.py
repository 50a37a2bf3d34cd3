"""The time between a grant and its end: one tenant, one sandbox, a fence between them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from dutyfree.contract import Sandbox, SpanListener
from dutyfree.model import Capability, Phase, Span
from dutyfree.pool.binding import Binding, bind
from dutyfree.pool.fence import Fence, LeasedSandbox
from dutyfree.pool.leases import Lease
from dutyfree.pool.roster import Member
from dutyfree.pool.staging import Stager
from dutyfree.trace import Ledger, SpanRecorder, account, now_ns

DRAINING_S: Final = 5.0
"""How long calls of a tenant may take to end after its lease."""
MAX_SPANS: Final = 20_000


@dataclass(eq=False, slots=True)
class Grant:
    """One lease, from its request to its end."""

    lease: Lease
    member: Member
    rung: str
    """Where the sandbox stood that was found: `hit` is the wanted state, `cold` a creation."""
    sandbox: Sandbox
    """As its tenant sees it."""
    fence: Fence
    start_ns: int
    """When it was asked for."""
    ready_ns: int = 0
    end_ns: int = 0
    """When the sandbox was there, and when its lease has ended."""
    spans: SpanRecorder = field(default_factory=lambda: SpanRecorder(MAX_SPANS))

    @property
    def readiness_ms(self) -> float:
        """From the request to a sandbox in the wanted state."""
        return (self.ready_ns - self.start_ns) / 1e6

    def ledger(self) -> Ledger:
        """Where the time of the lease went, from its request on."""
        return account(self.spans.spans, self.start_ns, self.end_ns or now_ns())


class Tenancies:
    """Lets tenants in and out."""

    def __init__(self, stager: Stager, capabilities: frozenset[Capability], on_span: SpanListener | None) -> None:
        self._stager = stager
        self._capabilities = capabilities
        self._on_span = on_span

    def check(self, binding: Binding) -> None:
        """Raise Unsupported for what cannot be bound here."""
        binding.check(self._capabilities)

    def begin(self, lease: Lease, member: Member, binding: Binding, rung: str, start_ns: int) -> Grant:
        """The tenant's side of a lease; `bind` comes next."""
        fence, state, wanted = Fence(lease), member.state, member.wanted

        async def restore(sandbox: Sandbox) -> None:
            await self._stager.promote(sandbox, wanted, member.made_in, state, member.ear)

        sandbox = LeasedSandbox(
            member.sandbox,
            fence,
            lease,
            self._stager.bound(wanted, member.made_in, state, binding),
            self._capabilities,
            restore if member.made_in != state else None,
            snapshots_hold_memory=self._stager.snapshots_hold_memory,
        )
        return Grant(lease, member, rung, sandbox, fence, start_ns)

    async def bind(self, grant: Grant, binding: Binding) -> None:
        """Put what is bound in place; from now on the tenant's time is told. Raises as `binding.bind`."""
        # A lease that ends meanwhile ends this, too: nothing may be written into the next one's sandbox.
        async with grant.fence:
            await bind(grant.member.sandbox, binding, self._capabilities)
        grant.ready_ns = now_ns()
        grant.member.ear.listener = self._listener(grant)
        grant.member.ear(Span(Phase.QUEUE, grant.start_ns, grant.ready_ns, grant.member.id, grant.rung))

    async def end(self, grant: Grant, how: str) -> bool:
        """The tenant is out, and its forks are gone. False if something of its own may still be on its way in."""
        grant.fence.end(how)
        drained = await grant.fence.drained(DRAINING_S)
        await asyncio.gather(*(fork.destroy() for fork in grant.fence.forks), return_exceptions=True)
        grant.member.ear.listener = None
        grant.end_ns = now_ns()
        return drained

    def _listener(self, grant: Grant) -> SpanListener:
        if self._on_span is None:
            return grant.spans
        listener = self._on_span

        def both(span: Span) -> None:
            grant.spans(span)
            listener(span)

        return both
