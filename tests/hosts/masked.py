"""Writes a file of its own to a masked path, forks, and prints what the fork sees there."""

from __future__ import annotations

import asyncio
import sys

import dutyfree


async def main(path: str) -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        await box.run(f"mkdir -p $(dirname {path}); echo own > {path}")
        [fork] = await box.fork(1)
        print((await fork.run(["cat", path])).text)


asyncio.run(main(sys.argv[1]))
