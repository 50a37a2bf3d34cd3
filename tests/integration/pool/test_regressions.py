"""Mistakes of pools over cells that were found once and must not come back."""

from __future__ import annotations

import asyncio

from dutyfree.client.box import Box
from dutyfree.errors import LeaseLost, SubstrateFailed
from dutyfree.leases.binding import Binding
from dutyfree.substrates.fake import FakeSubstrate
from support.pools import plain, pool_of


async def test_a_lease_that_expires_while_it_is_bound_writes_nothing_more() -> None:
    async with pool_of(FakeSubstrate("cell"), sandboxes=1) as (pool, stager):
        wanted = await plain(stager)
        binding = Binding(files={f"/tmp/{number}": bytes(200_000) for number in range(40)})
        try:
            grant = await pool.acquire(wanted, ttl_s=0.05, binding=binding, timeout_s=20)
        except (LeaseLost, SubstrateFailed):
            pass
        else:
            await pool.release(grant)
        after = await pool.acquire(wanted, timeout_s=20)
        await asyncio.sleep(0.5)
        assert (await Box(after, pool).run("cat /tmp/39")).exit_code == 1
