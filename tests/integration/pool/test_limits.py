"""Limits of a pool of real cells: forks count, and sizes are measured."""

from __future__ import annotations

import pytest

import dutyfree

MIB = 1 << 20


async def test_forks_of_a_leased_sandbox_count_until_they_end() -> None:
    async with dutyfree.local("cell", pool=dutyfree.PoolOptions(sandboxes=4)) as host:
        async with host.lease() as box:
            forks = await box.fork(3)
            assert host.pool.status().leased == 4
            with pytest.raises(dutyfree.CapacityError):
                await box.fork(1)
            with pytest.raises(dutyfree.CapacityError):
                await host.acquire(timeout_s=0.3)
            await forks[0].close()
            assert host.pool.status().leased == 3
            other = await host.acquire(timeout_s=30)
            await other.close()
            await box.fork(1)
            await box.destroy()
            assert host.pool.status().leased == 1
        assert host.pool.status().leased == 0


async def test_idle_sandboxes_make_room_for_forks() -> None:
    async with dutyfree.local("cell", pool=dutyfree.PoolOptions(sandboxes=4)) as host:
        boxes = [await host.acquire() for _ in range(4)]
        for box in boxes[1:]:
            await box.close()
        assert len(await boxes[0].fork(3)) == 3


async def test_memory_of_tenants_is_measured_and_limits_the_pool() -> None:
    options = dutyfree.PoolOptions(sandboxes=16, memory_bytes=160 * MIB)
    async with dutyfree.local("cell", pool=options) as host:
        if dutyfree.Capability.LIMIT_MEMORY not in host.capabilities:
            pytest.skip("the memory of cells is not counted here")
        async with host.lease() as box:
            assert (await box.run("head -c 60000000 /dev/zero > /tmp/large")).ok
        first, second = await host.acquire(), await host.acquire()
        assert host.pool.status().memory_bytes >= 2 * 57 * MIB
        with pytest.raises(dutyfree.CapacityError):
            await host.acquire(timeout_s=0.5)
        await first.close()
        third = await host.acquire(timeout_s=30)
        await second.close()
        await third.close()
