"""Grants: each connects one lease with its sandbox, from the moment of granting until the lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from dutyfree.contract import Sandbox, SpanListener
from dutyfree.leases.binding import Binding, MaskedEnvironment, bind
from dutyfree.leases.fence import Fence
from dutyfree.leases.table import Lease
from dutyfree.model import Capability, Phase, Span
from dutyfree.model.environment import CheckedEnvironment
from dutyfree.pool.members import Member
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.trace import Ledger, SpanRecorder, account, now_ns

DRAINING_S: Final = 5.0
"""How long the pool waits for a tenant's cancelled calls to end, after the end of its lease."""
MAX_SPANS: Final = 20_000
"""The most spans that are recorded for one lease."""


class SpanSink:
    """Receives the spans of a sandbox and passes them on to its present tenant; without a tenant, to `fallback`."""

    __slots__ = ("_fallback", "listener")

    def __init__(self, fallback: SpanListener | None = None) -> None:
        self._fallback = fallback
        self.listener: SpanListener | None = None

    def __call__(self, span: Span) -> None:
        listener = self.listener or self._fallback
        if listener is not None:
            listener(span)


@dataclass(frozen=True, slots=True)
class LiveSandbox:
    """A sandbox of a pool, with the receiver of its spans; None if no span of it is wanted."""

    sandbox: Sandbox
    spans: SpanSink | None


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
    spans: SpanRecorder = field(default_factory=lambda: SpanRecorder(MAX_SPANS))

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, without the fence."""
        return self.live.sandbox

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
        self, stager: Stager, capabilities: frozenset[Capability], on_span: SpanListener | None, *, reports_wait: bool
    ) -> None:
        """`reports_wait` says whether the wait for a sandbox is reported as a span; otherwise its creation is."""
        self._stager = stager
        self._capabilities = capabilities
        self._on_span = on_span
        self._reports_wait = reports_wait

    def check(self, binding: Binding) -> None:
        """Raise Unsupported if this substrate cannot bind all of it."""
        binding.check(self._capabilities)

    def begin(
        self, lease: Lease, member: Member[Wanted], live: LiveSandbox, binding: Binding, rung: str, start_ns: int
    ) -> Grant:
        """The grant of a new lease. The caller then calls `bind`."""
        state, made_in, wanted = member.state, member.made_in, member.goal
        bound = self._stager.bound(wanted, made_in, state, binding)

        async def restore(sandbox: Sandbox) -> None:
            await self._stager.promote(sandbox, wanted, made_in, state, live.spans)

        return Grant(
            lease,
            member,
            live,
            rung,
            Fence(lease.id),
            bound,
            bound.environment(lease.id, lease.owner),
            self._capabilities,
            restore if made_in != state else None,
            self._stager.snapshots_hold_memory and bound.is_secret,
            start_ns,
        )

    async def bind(self, grant: Grant, binding: Binding) -> None:
        """Write the bound files, and pass the sandbox's spans on to the tenant. Raises as `binding.bind`."""
        if binding.files or binding.secret_files:
            # If the lease ends meanwhile, the fence cancels the writing before the next tenant gets the sandbox.
            async with grant.fence:
                await bind(grant.sandbox, binding, self._capabilities)
        grant.ready_ns = now_ns()
        if grant.live.spans is None:
            return
        grant.live.spans.listener = self._listener(grant)
        if self._reports_wait:
            grant.live.spans(Span(Phase.QUEUE, grant.start_ns, grant.ready_ns, grant.member.id, grant.rung))

    def end_at_once(self, grant: Grant) -> bool:
        """End the grant without waiting. Returns False, and does nothing, if a call is in progress or forks exist."""
        if grant.fence.busy or grant.fence.forks:
            return False
        grant.fence.end()
        self._finish(grant)
        return True

    async def end(self, grant: Grant, how: str) -> bool:
        """Lock the tenant out and destroy its forks. Returns False if one of its calls may still reach the sandbox."""
        grant.fence.end(how)
        drained = await grant.fence.drained(DRAINING_S)
        if forks := grant.fence.forks:
            await asyncio.gather(*(fork.destroy() for fork in forks), return_exceptions=True)
        self._finish(grant)
        return drained

    def _finish(self, grant: Grant) -> None:
        if grant.live.spans is not None:
            grant.live.spans.listener = None
        grant.end_ns = now_ns()

    def _listener(self, grant: Grant) -> SpanListener:
        if self._on_span is None:
            return grant.spans
        listener = self._on_span

        def both(span: Span) -> None:
            grant.spans(span)
            listener(span)

        return both
