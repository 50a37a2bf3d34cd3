"""How long a clean sandbox takes: reset, create, and destroy followed by create."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from cells import Study, since_ms
from dutyfree.client.box import Box
from dutyfree.model import Image
from images_study import PAUSE_S, Bench, Contender, Kind, run


async def study(bench: Bench, kind: Kind, image: Image) -> Study:
    """Side by side, with the same work done in a sandbox before each, and the same pause after it."""
    contenders = {
        "create": _create(bench, kind, image),
        "reset": _reset(bench, kind, image),
        "destroy, then create": _destroy_and_create(bench, kind, image),
    }
    title = f"a clean sandbox with the attrs image, {kind.title}"
    return await bench.interleave(title, "create", contenders, bench.blocks(50, 10), warm_up=2)


def _create(bench: Bench, kind: Kind, image: Image) -> Contender:
    async def measure() -> float:
        async with bench.box(kind, image) as used, AsyncExitStack() as stack:
            await _use(used)
            start = time.perf_counter()
            await stack.enter_async_context(bench.box(kind, image))
            return since_ms(start)

    return measure


def _reset(bench: Bench, kind: Kind, image: Image) -> Contender:
    async def measure() -> float:
        async with bench.box(kind, image) as used:
            await _use(used)
            start = time.perf_counter()
            await used.reset()
            return since_ms(start)

    return measure


def _destroy_and_create(bench: Bench, kind: Kind, image: Image) -> Contender:
    async def measure() -> float:
        async with bench.box(kind, image) as used, AsyncExitStack() as stack:
            await _use(used)
            start = time.perf_counter()
            await used.destroy()
            await stack.enter_async_context(bench.box(kind, image))
            return since_ms(start)

    return measure


async def _use(box: Box) -> None:
    """A few actions and files, as an attempt leaves them."""
    for number in range(3):
        await run(box, f"mkdir -p /root/attempt/{number} && echo {number} > /root/attempt/{number}/file")
    await box.files.write("/tmp/written", bytes(100_000))
    await asyncio.sleep(PAUSE_S)
