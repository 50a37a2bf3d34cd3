"""What leases leave to the garbage collector: nothing, because its rounds take a twentieth of a cold lease."""

from __future__ import annotations

import asyncio
import gc

import dutyfree


async def test_a_lease_leaves_no_reference_cycles() -> None:
    async with dutyfree.local("cell") as host:
        for _ in range(3):  # fills caches
            await use(host)
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                await use(host)
            await asyncio.sleep(0.05)
            assert gc.collect() == 0
        finally:
            gc.enable()


async def use(host: dutyfree.Host) -> None:
    async with host.lease() as box:
        await box.run("true")
