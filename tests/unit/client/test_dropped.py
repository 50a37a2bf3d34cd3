"""Leases that a program forgets: each mistake is named, with the remedy."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

import dutyfree
from dutyfree import sync


async def test_awaiting_a_block_says_what_to_write_instead() -> None:
    async with dutyfree.local("process") as host:
        with pytest.raises(dutyfree.InvalidRequest, match="cannot be awaited") as refused:
            await host.lease()  # type: ignore[misc]
        assert "await host.acquire()" in (refused.value.hint or "")
        assert host.leases() == []


async def test_a_block_is_entered_once() -> None:
    async with dutyfree.local("process") as host:
        block = host.lease()
        async with block:
            with pytest.raises(dutyfree.InvalidRequest, match="entered already"):
                await block.__aenter__()
        assert host.leases() == []


async def test_a_box_that_is_dropped_while_its_lease_lasts_warns() -> None:
    async with dutyfree.local("process") as host:
        with pytest.warns(ResourceWarning, match="the lease goes on"):
            await host.acquire()
        assert len(host.leases()) == 1


async def test_a_box_that_was_closed_is_dropped_in_silence() -> None:
    async with dutyfree.local("process") as host:
        box = await host.acquire()
        await box.close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del box
            gc.collect()
        assert caught == []


async def drop_block(host: dutyfree.Host) -> dutyfree.Box:
    """The box of a block that is dropped, after its lease has ended."""
    box = await host.lease().__aenter__()
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if not host.leases():
            break
    return box


async def test_a_block_that_is_dropped_ends_its_lease_and_warns() -> None:
    async with dutyfree.local("process") as host:
        with pytest.warns(ResourceWarning, match="was dropped before the block"):
            box = await drop_block(host)
        with pytest.raises(dutyfree.LeaseLost):
            await box.run("true")


def test_a_sync_block_that_is_dropped_warns() -> None:
    with sync.local("process") as host:
        with pytest.warns(ResourceWarning, match="was dropped before the block"):
            box = host.lease().__enter__()
        with pytest.raises(dutyfree.LeaseLost):
            box.run("true")
