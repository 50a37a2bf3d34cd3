"""Thousands of cells come and go, and nothing of them stays."""

from __future__ import annotations

import asyncio
import time

import dutyfree
from dutyfree.testing import leaks

CYCLES = 2000
CONCURRENCY = 8


async def test_two_thousand_cells_leave_nothing() -> None:
    before = leaks.snapshot()
    start = time.monotonic()
    async with dutyfree.local(substrate="cell") as host:
        waiting = iter(range(CYCLES))

        async def worker() -> None:
            for number in waiting:
                async with host.lease() as box:
                    seen = await box.run(["echo", str(number)])
                    assert seen.text == f"{number}\n"

        open_host = leaks.snapshot()
        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        assert await leaks.settle(open_host) == []
    assert await leaks.settle(before) == []
    print(f"{CYCLES} cells in {time.monotonic() - start:.1f} s, nothing left")
