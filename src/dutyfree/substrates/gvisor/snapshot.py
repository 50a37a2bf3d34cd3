"""A snapshot of a gVisor sandbox: its layers, and what it had written as a layer on top."""

from __future__ import annotations

from dutyfree.model import Image
from dutyfree.substrates.gvisor.layers import Layers, LayerStack
from dutyfree.substrates.kept_snapshot import KeptSnapshot


class GVisorSnapshot(KeptSnapshot):
    """Owns a stack of layers, and releases it when the snapshot is discarded."""

    def __init__(self, layers: Layers, stack: LayerStack) -> None:
        super().__init__(stack.image.layers[-1].removeprefix("live:"), stack.image)
        self._layers = layers
        self._stack = stack

    async def _put(self) -> Image:
        return self._image if self._image.is_stored else await self._layers.save(self._stack)

    async def _let_go(self) -> None:
        self._layers.release(self._stack)
