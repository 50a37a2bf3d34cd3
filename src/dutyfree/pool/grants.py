"""Grants: each connects one lease with its sandbox, from the moment of granting until the lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Final

from dutyfree.background.table import Background, ProcessTable
from dutyfree.contract import Sandbox, SpanListener
from dutyfree.errors import LeaseLost, Unsupported
from dutyfree.leases.binding import Binding, MaskedEnvironment, bind
from dutyfree.leases.fence import Fence
from dutyfree.leases.secret import Secret
from dutyfree.leases.table import Lease
from dutyfree.model import Capability, Phase, Span
from dutyfree.model.environment import CheckedEnvironment
from dutyfree.pool.billing import Billing, SpanSink, Spent
from dutyfree.pool.members import Member
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.trace import Ledger, SpanRecorder, account, now_ns
from dutyfree.values import dataclass

if TYPE_CHECKING:
    from dutyfree.leases.lease_egress import LeaseEgress

DRAINING_S: Final = 5.0
"""How long the pool waits for a tenant's cancelled calls to end, after the end of its lease."""
MAX_SPANS: Final = 20_000
"""The most spans that are recorded for one lease."""


@dataclass(frozen=True, slots=True)
class LiveSandbox:
    """A sandbox of a pool, with the receiver of its spans."""

    sandbox: Sandbox
    spans: SpanSink


@dataclass(eq=False, slots=True)
class Grant:
    """One lease, from its request to its end, with everything that its tenant needs."""

    lease: Lease
    member: Member[Wanted]
    live: LiveSandbox
    rung: str
    """The rung on which a sandbox was found: `hit` is the wanted state, `cold` means a creation."""
    fence: Fence
    binding: Binding
    """The binding of the lease, with the environment of those stages that are not part of the sandbox's image."""
    env: MaskedEnvironment | CheckedEnvironment
    """The environment of the lease's actions now."""
    capabilities: frozenset[Capability]
    restore: Callable[[Sandbox], Awaitable[None]] | None
    """Adds the stages that a reset of the sandbox removes; None if it removes none."""
    sealed: bool
    """Whether snapshots and forks are refused: they would contain the sandbox's memory, and so the lease's secrets."""
    start_ns: int
    """When the request came."""
    ready_ns: int = 0
    """When the sandbox was ready in the wanted state; 0 before."""
    end_ns: int = 0
    spans: SpanRecorder = field(default_factory=partial(SpanRecorder, MAX_SPANS))
    spent: Spent = field(default_factory=Spent)
    egress: LeaseEgress | None = None
    """What serves the connections of the lease's programs; None without egress by name."""
    background: Background | None = None
    """The background processes; None before the first of them, so that a lease without any pays nothing."""
    seals_secrets: bool = False
    """Whether a secret that is added later seals it: snapshots hold memory here."""
    changed: Binding | None = None
    """The binding with the changes of its environment; None while there are none."""

    def change_env(self, changes: Mapping[str, str | Secret | None]) -> None:
        """Change the environment of later actions: all of `changes`, or none. Raises as `Binding.changed` does."""
        self.changed = (self.changed or self.binding).changed(changes)
        self.env = self.changed.environment(self.lease.id, self.lease.owner)
        self.sealed |= self.seals_secrets and self.changed.is_secret

    def restore_env(self) -> None:
        """Undo all changes of the environment."""
        if self.changed is not None:
            self.changed = None
            self.env = self.binding.environment(self.lease.id, self.lease.owner)

    def check_sealed(self) -> None:
        """Raise Unsupported if a snapshot or fork would contain the lease's secrets."""
        if self.sealed:
            hint = "take it before the lease, or bind no secrets"
            raise Unsupported("a snapshot here would contain the sandbox's memory and the lease's secrets", hint=hint)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, without the fence."""
        return self.live.sandbox

    def processes(self, sandbox: Sandbox) -> ProcessTable:
        """The background processes of the sandbox, or of a fork of it."""
        if self.background is None:
            self.background = Background()
        return self.background.of(sandbox)

    @property
    def readiness_ms(self) -> float:
        """The time from the request to a sandbox in the wanted state."""
        return (self.ready_ns - self.start_ns) / 1e6

    def ledger(self) -> Ledger:
        """The time of the lease by phase, from its request on."""
        return account(self.spans.spans, self.start_ns, self.end_ns or now_ns())


class Grants:
    """Begins and ends grants."""

    def __init__(
        self,
        stager: Stager,
        capabilities: frozenset[Capability],
        on_span: SpanListener | None,
        billing: Billing,
        *,
        reports_wait: bool,
        records: bool,
    ) -> None:
        """`reports_wait` says whether the wait for a sandbox is reported as a span; otherwise its creation is.

        `records` says whether grants keep their spans at first.
        """
        self._stager = stager
        self._capabilities = capabilities
        self._on_span = on_span
        self._billing = billing
        self._reports_wait = reports_wait
        self.records = records
        """Whether leases that begin from now on keep their spans."""
        self._seals_secrets = stager.snapshots_hold_memory
        self._draining: set[asyncio.Task[None]] = set()
        """What reads the background processes of ended leases, until their sandboxes are reset or destroyed."""

    def check(self, binding: Binding) -> None:
        """Raise Unsupported if this substrate cannot bind all of it."""
        binding.check(self._capabilities)

    def begin(
        self, lease: Lease, member: Member[Wanted], live: LiveSandbox, binding: Binding, rung: str, start_ns: int
    ) -> Grant:
        """The grant of a new lease. The caller then calls `bind`."""
        bound = self._stager.bound(member.goal, member.made_in, member.state, binding)
        return Grant(
            lease,
            member,
            live,
            rung,
            Fence(lease.id),
            bound,
            bound.environment(lease.id, lease.owner),
            self._capabilities,
            self._restore(member, live) if member.made_in != member.state else None,
            self._seals_secrets and bound.is_secret,
            start_ns,
            seals_secrets=self._seals_secrets,
        )

    def _restore(self, member: Member[Wanted], live: LiveSandbox) -> Callable[[Sandbox], Awaitable[None]]:
        state, made_in, wanted = member.state, member.made_in, member.goal

        async def restore(sandbox: Sandbox) -> None:
            await self._stager.promote(sandbox, wanted, made_in, state, live.spans)

        return restore

    async def bind(self, grant: Grant, binding: Binding) -> None:
        """Write the bound files, and pass the sandbox's spans on to the tenant. Raises as `binding.bind`."""
        if binding.files or binding.secret_files or binding.uploads:
            # If the lease ends meanwhile, the fence cancels the writing before the next tenant gets the sandbox.
            with grant.fence:
                await bind(grant.sandbox, binding, self._capabilities)
        if binding.egress is not None:
            from dutyfree.leases.lease_egress import LeaseEgress  # most leases have no egress

            grant.egress = LeaseEgress(binding.egress)
            async with grant.fence:
                await grant.egress.bind(grant.sandbox)
        grant.ready_ns = now_ns()
        grant.live.spans.lease(grant.spent, grant.start_ns, grant.ready_ns)
        self._billing.leased(grant.rung, grant.spent)
        if self.records:
            grant.live.spans.listener = listener = self._listener(grant)
            if self._reports_wait:
                listener(Span(Phase.QUEUE, grant.start_ns, grant.ready_ns, grant.member.id, grant.rung))

    def end_at_once(self, grant: Grant) -> bool:
        """End the grant without waiting. Returns False, and does nothing, if that needs more: calls, forks, egress."""
        if grant.fence.busy or grant.fence.forks or grant.egress is not None:
            return False
        grant.fence.end()
        self._finish(grant)
        return True

    async def end(self, grant: Grant, how: str) -> bool:
        """Lock the tenant out and destroy its forks. Returns False if one of its calls may still reach the sandbox."""
        grant.fence.end(how)
        drained = await grant.fence.drained(DRAINING_S)
        if grant.egress is not None:
            await grant.egress.close()
        if forks := grant.fence.forks:
            await asyncio.gather(*(fork.destroy() for fork in forks), return_exceptions=True)
        self._finish(grant, how)
        return drained

    async def drained(self) -> None:
        """Return when the background processes of ended leases are over; call it after the end of their sandboxes."""
        if self._draining:
            await asyncio.wait(self._draining, timeout=DRAINING_S)
        while tasks := tuple(self._draining):  # of sandboxes that could not be destroyed
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _finish(self, grant: Grant, how: str = "has ended") -> None:
        if grant.background is not None:
            tasks = grant.background.end(LeaseLost(f"lease {grant.lease.id} {how}"))
            self._draining |= tasks
            for task in tasks:
                task.add_done_callback(self._draining.discard)
        grant.live.spans.released()
        grant.end_ns = now_ns()
        if grant.ready_ns:
            self._billing.held_ns += grant.end_ns - grant.ready_ns
        if grant.fence.failure is not None:
            self._billing.failed("lease", grant.fence.failure)

    def _listener(self, grant: Grant) -> SpanListener:
        if self._on_span is None:
            return grant.spans
        listener = self._on_span

        def both(span: Span) -> None:
            grant.spans(span)
            listener(span)

        return both
