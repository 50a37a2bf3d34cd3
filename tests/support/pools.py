"""Pools over `fake` for tests, and what tests do with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dutyfree.client.box import Box
from dutyfree.model import Image, Recipe, SandboxSpec, Stage
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.pool import Pool
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.substrates.fake import FakeSubstrate
from dutyfree.substrates.guarded import GuardedSubstrate

RECIPE = Recipe(
    stages=(
        Stage("image", run=("echo tools > image",)),
        Stage("repository", run=("echo code > repository",), env={"REPOSITORY": "here"}),
    )
)


@asynccontextmanager
async def pool_of(fake: FakeSubstrate | None = None, **options: object) -> AsyncIterator[tuple[Pool, Stager]]:
    fake = fake or FakeSubstrate()
    async with GuardedSubstrate(fake) as substrate:
        stager = Stager(substrate)
        async with Pool(stager, PoolOptions(**options), substrate.capabilities) as pool:  # type: ignore[arg-type]
            yield pool, stager
        assert not fake.living, "a closed pool leaves nothing"


async def plain(stager: Stager) -> Wanted:
    return await stager.wanted(Image(), SandboxSpec())


async def until(condition: object, within_s: float = 5.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s, "it did not happen"
        await asyncio.sleep(0.005)


async def text(box: Box, line: str) -> str:
    return (await box.run(line)).text
