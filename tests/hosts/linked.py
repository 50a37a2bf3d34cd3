"""Cells over a layer that has links in the places where parts of the host are mounted. Prints what they see there."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import dutyfree
from dutyfree.model import Image


def layer_with_link(host: dutyfree.LocalHost, path: str, target: str) -> str:
    """The digest of a stored layer that has just that."""
    with tempfile.TemporaryDirectory() as layer:
        link = Path(layer, path[1:])
        link.parent.mkdir(parents=True)
        link.symlink_to(target)
        return host.store.adopt(Path(layer), f"test {os.getpid()}").digest


async def main(place: str, secret: str) -> None:
    async with dutyfree.local("cell") as host:
        for link in (place, str(Path(place).parent)):
            digest = await asyncio.to_thread(layer_with_link, host, link, secret)
            async with host.lease(Image((digest,), over_host=True)) as box:
                print((await box.run(f"cat {place}/token {place}/file {secret}/token")).text)


asyncio.run(main(*sys.argv[1:]))
