"""A snapshot of a cell: a chain that is kept, and can be put into the image store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.images.blocking import stoppable
from dutyfree.model import Image
from dutyfree.substrates.cell.chain import Chain
from dutyfree.substrates.kept_snapshot import KeptSnapshot

if TYPE_CHECKING:
    from dutyfree.substrates.cell.substrate import CellSubstrate


class CellSnapshot(KeptSnapshot):
    """Takes over the chain."""

    def __init__(self, substrate: CellSubstrate, chain: Chain) -> None:
        super().__init__(chain.image.layers[-1].removeprefix("live:"), chain.image)
        self._substrate = substrate
        self._chain = chain

    async def _put(self) -> Image:
        for layer in self._chain.frozen:
            if layer.stored is None or not self._substrate.store.has(layer.stored):
                layer.stored = await self._adopted(layer.tree)
        names = (*self._chain.stored, *(layer.stored or layer.name for layer in self._chain.frozen))
        return replace(self._image, layers=names)

    async def _adopted(self, tree: Path) -> str:
        store = self._substrate.store
        return (await stoppable(lambda on_bytes: store.adopt(tree, "built", link=True, on_bytes=on_bytes))).digest

    async def _let_go(self) -> None:
        self._substrate.chains.release(self._chain)
