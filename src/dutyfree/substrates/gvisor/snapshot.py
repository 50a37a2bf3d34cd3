"""A snapshot of a sandbox: what it stood on, with all that it had written, kept."""

from __future__ import annotations

from dutyfree.model import Image
from dutyfree.substrates.gvisor.layers import Footing, Layers
from dutyfree.substrates.kept_snapshot import KeptSnapshot


class GVisorSnapshot(KeptSnapshot):
    """Takes over the footing."""

    def __init__(self, layers: Layers, footing: Footing) -> None:
        super().__init__(footing.image.layers[-1].removeprefix("live:"), footing.image)
        self._layers = layers
        self._footing = footing

    async def _put(self) -> Image:
        return self._image if self._image.is_stored else await self._layers.save(self._footing)

    async def _let_go(self) -> None:
        self._layers.release(self._footing)
