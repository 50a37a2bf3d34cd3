"""How containers and the images of snapshots end; what is started and what stands still meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Image, SandboxSpec
from dutyfree.substrates.docker.body import DockerBody
from dutyfree.substrates.docker.snapshot import Leftovers


class Chain:
    """An engine in which each image hangs on the one before."""

    def __init__(self, *images: str) -> None:
        self.images = list(images)
        self.facts = SimpleNamespace(limits=frozenset())
        self.removed: list[str] = []

    async def wait_for_exit(self, container: str) -> None:
        self.removed.append(container)

    async def remove_image(self, image: str) -> bool:
        if self.images and self.images[-1] == image:
            self.images.pop()
        return image not in self.images


def leftovers_in(engine: Any) -> Leftovers:
    found = Leftovers(engine)
    for image in engine.images:
        found.add(image)
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
