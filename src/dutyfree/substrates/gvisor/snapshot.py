"""A snapshot of a sandbox: what it stood on, with all that it had written, kept."""

from __future__ import annotations

import asyncio

from dutyfree.contract import Snapshot
from dutyfree.errors import InvalidRequest
from dutyfree.model import Image
from dutyfree.substrates.gvisor.layers import Footing, Layers


class GVisorSnapshot(Snapshot):
    """Takes over the footing."""

    def __init__(self, layers: Layers, footing: Footing) -> None:
        self._layers = layers
        self._footing = footing
        self._image = footing.image
        self._discarded = False
        self._turn = asyncio.Lock()
        self._id = footing.image.layers[-1].removeprefix("live:")

    @property
    def id(self) -> str:
        return self._id

    @property
    def image(self) -> Image:
        return self._image

    async def save(self) -> Image:
        async with self._turn:
            if not self._image.is_stored:
                if self._discarded:
                    raise InvalidRequest(f"snapshot {self.id} was discarded")
                self._image = await self._layers.save(self._footing)
        return self._image

    async def discard(self) -> None:
        async with self._turn:
            if not self._discarded:
                self._discarded = True
                self._layers.release(self._footing)
