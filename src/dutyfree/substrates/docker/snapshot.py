"""Snapshots of containers: images that the engine commits, and their removal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from dutyfree.model import Image
from dutyfree.substrates.docker.client import Engine
from dutyfree.substrates.kept_snapshot import KeptSnapshot

if TYPE_CHECKING:
    from dutyfree.substrates.docker.substrate import DockerSubstrate


class Leftovers:
    """The images of a substrate's snapshots, until they are removed.

    An engine refuses to remove an image while containers or other images need it, so a discarded one may wait.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._taken: set[str] = set()
        self._discarded: set[str] = set()
        self._lock = asyncio.Lock()

    def add(self, image: str) -> None:
        """Register the image of a new snapshot."""
        self._taken.add(image)

    def is_discarded(self, reference: str) -> bool:
        """Whether the image was discarded. No new sandbox may start from it, though the engine may still have it."""
        return reference in self._discarded

    async def discard(self, image: str) -> None:
        """Remove the image now, or when nothing needs it any more."""
        self._discarded.add(image)
        await self.tidy()

    async def tidy(self) -> None:
        """Remove the discarded images that nothing needs any more."""
        if not self._discarded & self._taken:
            return
        async with self._lock:
            # Images may depend on each other, so repeat until nothing more can be removed.
            while gone := {each for each in self._discarded & self._taken if await self._engine.remove_image(each)}:
                self._taken -= gone

    async def clear(self) -> None:
        """Remove all images: snapshots end with their substrate."""
        self._discarded |= self._taken
        await self.tidy()


class DockerSnapshot(KeptSnapshot):
    """An image without a name in the engine."""

    def __init__(self, substrate: DockerSubstrate, committed: str, source: Image) -> None:
        super().__init__(committed, replace(source, reference=committed))
        self._substrate = substrate

    async def _put(self) -> Image:
        if self._image.is_stored:
            return self._image
        return await self._substrate.images.save_to_store(self.id, self._image)

    async def _let_go(self) -> None:
        await self._substrate.leftovers.discard(self.id)
