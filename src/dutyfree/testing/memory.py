"""Bounds the memory of this process, so that a check can limit what a call costs the host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dutyfree.testing import expect

MIB = 1024 * 1024
_SAMPLE_S = 0.01


def resident_bytes() -> int:
    """The resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@asynccontextmanager
async def bounded_growth(limit_bytes: int) -> AsyncIterator[None]:
    """Check that this process grows by at most `limit_bytes` within the block; samples its memory every 10 ms."""
    before_bytes = most_bytes = resident_bytes()

    async def watch() -> None:
        nonlocal most_bytes
        while True:
            most_bytes = max(most_bytes, resident_bytes())
            await asyncio.sleep(_SAMPLE_S)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
    grown_mib = (max(most_bytes, resident_bytes()) - before_bytes) / MIB
    expect.true(
        grown_mib * MIB <= limit_bytes,
        f"the host grew by {grown_mib:.0f} MiB, past its limit of {limit_bytes / MIB:.0f} MiB",
    )
