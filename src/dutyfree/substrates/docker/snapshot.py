"""A snapshot: an image that the engine made of a container, and the images that wait for their end."""

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
    """The images of snapshots. An engine keeps an image for as long as containers, or other images, need it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._taken: set[str] = set()
        self._discarded: set[str] = set()
        self._turn = asyncio.Lock()

    def took(self, image: str) -> None:
        """There is one more."""
        self._taken.add(image)

    def is_discarded(self, reference: str) -> bool:
        """Whether nothing may be started from it any more, though the engine may still have it."""
        return reference in self._discarded

    async def discard(self, image: str) -> None:
        """Remove it now, or when the last that needs it has gone."""
        self._discarded.add(image)
        await self.tidy()

    async def tidy(self) -> None:
        """Remove what was discarded and is needed no more."""
        if not self._discarded & self._taken:
            return
        async with self._turn:
            # Those that hang on each other go from the last to the first.
            while gone := {each for each in self._discarded & self._taken if await self._engine.remove_image(each)}:
                self._taken -= gone

    async def clear(self) -> None:
        """Remove all; snapshots go with the substrate."""
        self._discarded |= self._taken
        await self.tidy()


class DockerSnapshot(KeptSnapshot):
    """An image of the engine's that has no name."""

    def __init__(self, substrate: DockerSubstrate, committed: str, source: Image) -> None:
        super().__init__(committed, replace(source, reference=committed))
        self._substrate = substrate

    async def _put(self) -> Image:
        return self._image if self._image.is_stored else await self._substrate.images.keep(self.id, self._image)

    async def _let_go(self) -> None:
        await self._substrate.leftovers.discard(self.id)
