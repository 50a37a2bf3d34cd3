"""A snapshot of a cell: a chain of layers that is kept, and can be saved to the image store."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.images.ownership import SUBORDINATE_IDS, is_root
from dutyfree.images.store.layers import LayerInfo
from dutyfree.model import Image
from dutyfree.substrates.cell.chain import Chain
from dutyfree.substrates.kept_snapshot import KeptSnapshot
from dutyfree.threads import in_thread_stoppable

if TYPE_CHECKING:
    from dutyfree.substrates.cell.substrate import CellSubstrate


def is_private_to_host(info: os.stat_result) -> bool:
    """Whether a file of a root-made cell's writable space is a private or set-id file of the host.

    A cell's root cannot read such a file, but it can move it, and then the kernel copies it. An exported image would
    give it to root, so that a cell over that image could read it.
    """
    if not stat.S_ISREG(info.st_mode) or info.st_uid >= SUBORDINATE_IDS:
        return False
    return not info.st_mode & 0o004 or bool(info.st_mode & 0o6000)


class CellSnapshot(KeptSnapshot):
    """Owns a chain, and releases it when the snapshot is discarded."""

    def __init__(self, substrate: CellSubstrate, chain: Chain) -> None:
        super().__init__(chain.image.layers[-1].removeprefix("live:"), chain.image)
        self._substrate = substrate
        self._chain = chain

    async def _put(self) -> Image:
        for layer in self._chain.frozen:
            if layer.stored is None or not self._substrate.store.has(layer.stored):
                layer.stored = await self._store_layer(layer.tree)
        names = (*self._chain.stored, *(layer.stored or layer.name for layer in self._chain.frozen))
        return replace(self._image, layers=names)

    async def _store_layer(self, tree: Path) -> str:
        store, leave_out = self._substrate.store, is_private_to_host if is_root() else None

        def adopt(on_bytes: Callable[[int], None]) -> LayerInfo:
            return store.adopt(tree, "built", link=True, on_bytes=on_bytes, leave_out=leave_out)

        return (await in_thread_stoppable(adopt)).digest

    async def _let_go(self) -> None:
        self._substrate.chains.release(self._chain)
