"""Boxes over sandboxes that the test itself has made, without a host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dutyfree.client.box import Box
from dutyfree.contract import Sandbox
from dutyfree.leases.binding import Binding
from dutyfree.leases.fence import Fence
from dutyfree.leases.table import Lease
from dutyfree.model import Capability, SandboxSpec
from dutyfree.pool.grants import Grant, LiveSandbox, SpanSink
from dutyfree.pool.members import Member
from dutyfree.pool.wanted import plain
from dutyfree.trace import now_ns


class NoHost:
    """Keeps no leases and has no limits."""

    def renew(self, grant: Grant, ttl_s: float | None = None) -> Lease:
        return grant.lease

    async def release(self, grant: Grant) -> None:
        grant.fence.end()

    async def reserve_forks(self, grant: Grant, count: int) -> None:
        pass

    def forks_ended(self, grant: Grant, count: int) -> None:
        pass


def boxed(
    inner: Sandbox,
    fence: Fence,
    lease: Lease,
    binding: Binding,
    capabilities: frozenset[Capability],
    restore: Callable[[Sandbox], Awaitable[None]] | None = None,
    *,
    sealed: bool = False,
) -> Box:
    """A box of `lease` over `inner`, in which the binding's files are already."""
    wanted = plain(SandboxSpec())
    member = Member(inner.id, wanted, wanted.ladder.top, wanted.ladder.top)
    env = binding.environment(lease.id, lease.owner)
    live = LiveSandbox(inner, SpanSink())
    grant = Grant(lease, member, live, "hit", fence, binding, env, capabilities, restore, sealed, now_ns())
    return Box(grant, NoHost())
