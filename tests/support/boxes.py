"""Boxes over sandboxes that the test itself has made, without a host."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dutyfree.client.box import Box
from dutyfree.contract import Sandbox, Substrate
from dutyfree.leases.binding import Binding, bind
from dutyfree.leases.fence import Fence
from dutyfree.leases.table import Lease, LeaseTable
from dutyfree.model import Capability, SandboxSpec
from dutyfree.pool.billing import Billing, SpanSink
from dutyfree.pool.grants import Grant, LiveSandbox
from dutyfree.pool.members import Member
from dutyfree.pool.wanted import plain
from dutyfree.trace import now_ns

TABLE = LeaseTable()


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
    live = LiveSandbox(inner, SpanSink(Billing()))
    grant = Grant(lease, member, live, "hit", fence, binding, env, capabilities, restore, sealed, now_ns())
    return Box(grant, NoHost())


@dataclass
class FencedLease:
    """A lease, with the sandbox inside of its fence and the box outside."""

    inner: Sandbox
    fence: Fence
    lease: Lease
    box: Box


async def lease_sandbox(
    substrate: Substrate, binding: Binding | None = None, spec: SandboxSpec | None = None
) -> FencedLease:
    """Create a sandbox and lease it."""
    inner = await substrate.create(spec or SandboxSpec())
    lease = TABLE.grant(inner.id, "ann", time.monotonic(), 60.0)
    TABLE.release(lease.id, lease.token)
    fence, binding = Fence(lease.id), binding or Binding()
    await bind(inner, binding, substrate.capabilities)
    return FencedLease(inner, fence, lease, boxed(inner, fence, lease, binding, substrate.capabilities))
