"""How containers and the images of snapshots end; what is started and what stands still meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Image, SandboxSpec
from dutyfree.substrates.docker.body import DockerBody
from dutyfree.substrates.docker.snapshot import Leftovers
from dutyfree.substrates.docker.standstill import Standstill


class Chain:
    """An engine in which each image hangs on the one before."""

    def __init__(self, *images: str) -> None:
        self.images = list(images)
        self.facts = SimpleNamespace(limits=frozenset())
        self.removed: list[str] = []

    async def ended(self, container: str) -> None:
        self.removed.append(container)

    async def remove_image(self, image: str) -> bool:
        if self.images and self.images[-1] == image:
            self.images.pop()
        return image not in self.images


def leftovers_in(engine: Any) -> Leftovers:
    found = Leftovers(engine)
    for image in engine.images:
        found.took(image)
    return found


async def test_snapshots_that_hang_on_each_other_go_when_the_last_is_discarded() -> None:
    engine = Chain(*"abcdef")
    leftovers = leftovers_in(engine)
    for image in "abcde":
        await leftovers.discard(image)
    assert engine.images == list("abcdef")
    await leftovers.discard("f")
    assert engine.images == []


async def test_all_snapshots_go_with_the_substrate() -> None:
    engine = Chain(*"abcdef")
    await leftovers_in(engine).clear()
    assert engine.images == []


async def test_an_image_that_cannot_be_removed_does_not_keep_a_sandbox_from_its_end() -> None:
    async def tidy() -> None:
        raise SubstrateFailed("the engine did not remove an image")

    engine: Any = Chain()
    substrate: Any = SimpleNamespace(leftovers=SimpleNamespace(tidy=tidy), weak={})
    channel: Any = SimpleNamespace()
    await DockerBody(substrate, engine, "box", channel, Image(), SandboxSpec()).end()
    assert engine.removed == ["box"]


@pytest.mark.parametrize("steps", range(6))
async def test_whenever_starts_are_cancelled_snapshots_go_on(steps: int) -> None:
    standstill = Standstill()

    inside: set[int] = set()

    async def start(number: int) -> None:
        async with standstill.starting():
            inside.add(number)
            try:
                await asyncio.sleep(0)
            finally:
                inside.remove(number)

    async with asyncio.timeout(5):
        async with standstill.still():
            starts = [asyncio.create_task(start(number)) for number in range(5)]
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        for each in starts[::2]:
            each.cancel()
        async with standstill.still():
            assert inside == set()
        await asyncio.gather(*starts, return_exceptions=True)
