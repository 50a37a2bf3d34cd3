"""A snapshot of a cell: a chain that is kept, and can be put into the image store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from dutyfree.contract import Snapshot
from dutyfree.errors import InvalidRequest
from dutyfree.images.blocking import in_thread
from dutyfree.model import Image
from dutyfree.substrates.cell.chain import Chain

if TYPE_CHECKING:
    from dutyfree.substrates.cell.substrate import CellSubstrate


class CellSnapshot(Snapshot):
    """Takes over the chain."""

    def __init__(self, substrate: CellSubstrate, chain: Chain) -> None:
        self._substrate = substrate
        self._chain = chain
        self._image = chain.image
        self._discarded = False
        self._turn = asyncio.Lock()
        self._id = chain.image.layers[-1].removeprefix("live:")

    @property
    def id(self) -> str:
        return self._id

    @property
    def image(self) -> Image:
        return self._image

    async def save(self) -> Image:
        async with self._turn:
            if self._discarded and not self._image.is_stored:
                raise InvalidRequest(f"snapshot {self.id} was discarded")
            for layer in self._chain.frozen:
                if layer.stored is None or not self._substrate.store.has(layer.stored):
                    adopted = await in_thread(self._substrate.store.adopt, layer.tree, "built", link=True)
                    layer.stored = adopted.digest
            names = (*self._chain.stored, *(layer.stored or layer.name for layer in self._chain.frozen))
            self._image = replace(self._image, layers=names)
        return self._image

    async def discard(self) -> None:
        async with self._turn:
            if not self._discarded:
                self._discarded = True
                self._substrate.chains.release(self._chain)
