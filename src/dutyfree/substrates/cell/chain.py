"""Resolves images to chains of layer directories, which are kept while a cell or a snapshot uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dutyfree.errors import Unsupported
from dutyfree.images.store import Hold, Store
from dutyfree.model import Image
from dutyfree.substrates.cell.frozen import FrozenLayer, FrozenLayers, with_modes
from dutyfree.substrates.cell.setting import Base, Lower, Setting
from dutyfree.threads import in_thread_stoppable
from dutyfree.values import dataclass

MAX_STORED = 32
"""The maximum of stored layers in a cell's root. Each layer slows every look-up of a missing file down, and the paths
of all layers must fit into one page, the kernel's limit for mount options."""


_HOST_ALONE: Final = Base()


@dataclass(eq=False, slots=True)
class Chain:
    """The layers below a cell, or of a snapshot, and the references that keep them."""

    image: Image
    base: Base
    frozen: tuple[FrozenLayer, ...] = ()
    """The live layers, bottom first; all stored layers are below them."""
    hold: Hold | None = None
    stored: tuple[str, ...] = ()
    """The stored layers of the image, bottom first, before they were flattened."""


class Chains:
    """Resolves images to chains. The caller must release every chain once."""

    def __init__(self, store: Store, frozen: FrozenLayers, setting: Setting) -> None:
        self._store = store
        self._frozen = frozen
        self._setting = setting
        self._lowers: dict[str, Lower] = {}

    async def resolve(self, image: Image) -> Chain:
        """The chain of an image. Raises InvalidRequest for a missing layer, CapacityError, SubstrateFailed."""
        if not image.layers:
            return Chain(image, _HOST_ALONE)
        live = [layer for layer in image.layers if layer.startswith("live:")]
        stored = image.layers[: len(image.layers) - len(live)]
        frozen = []
        try:
            for name in live:
                frozen.append(self._frozen.find(name))
            used = stored
            if len(stored) > MAX_STORED:
                from dutyfree.images.flattening import flattened  # few images have so many layers

                used = await in_thread_stoppable(
                    lambda on_bytes: flattened(self._store, stored, bottom=not image.over_host, on_bytes=on_bytes)
                )
            return self._chain(image, used, stored, tuple(frozen))
        except BaseException:
            for layer in frozen:
                self._frozen.release(layer)
            raise

    def _chain(
        self, image: Image, used: tuple[str, ...], stored: tuple[str, ...], live: tuple[FrozenLayer, ...]
    ) -> Chain:
        hold = self._store.hold(used) if used else None
        try:
            lowers = [layer.lower for layer in reversed(live)] + [self._lower(layer) for layer in reversed(used)]
            if image.over_host and self._setting.host.is_overlay and any(lower.inside_host for lower in lowers):
                hint = "set DUTYFREE_STATE_DIR to a directory on another file system, a volume for instance"
                raise Unsupported("this machine's root is an overlay, and the kernel stacks no more of them", hint=hint)
        except BaseException:
            if hold is not None:
                hold.release()
            raise
        return Chain(image, Base(tuple(lowers), image.over_host), live, hold, stored)

    async def over(self, chain: Chain, frozen: Sequence[FrozenLayer]) -> Chain:
        """A new chain: the stored layers of `chain`, and over them these live layers, bottom first."""
        return await self.resolve(replace(chain.image, layers=(*chain.stored, *(layer.name for layer in frozen))))

    def release(self, chain: Chain) -> None:
        """Drop the chain's references to its layers."""
        for layer in chain.frozen:
            self._frozen.release(layer)
        if chain.hold is not None:
            chain.hold.release()

    def _lower(self, layer: str) -> Lower:
        tree = self._store.tree(layer)
        if layer not in self._lowers:  # a stored layer never changes
            path = f"/layers/{layer.removeprefix('sha256:')}/tree"
            lower = Lower(path, "/layers", inside_host=self._setting.layers_inside_host)
            self._lowers[layer] = with_modes(lower, tree, self._setting)
        return self._lowers[layer]
