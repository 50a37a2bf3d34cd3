"""What sandboxes stand on: layers of the image store, and above them at most one that is kept here."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest, Unsupported
from dutyfree.images.flattening import flattened
from dutyfree.images.store import Hold, Store
from dutyfree.images.trees import copy_tree, merge_trees
from dutyfree.model import Image
from dutyfree.removal import remove_tree
from dutyfree.threads import in_thread, in_thread_stoppable

MAX_STORED: Final = 16
"""All paths of layers must fit into the kernel's one page of mount options."""
MAX_LIVE: Final = 512


@dataclass(eq=False, slots=True)
class LiveLayer:
    """What a sandbox had changed at one moment; gone when nobody refers to it any more."""

    name: str
    """As it stands in an image."""
    directory: Path
    stored: str | None = None
    """Its name in the image store, once it was saved."""
    references: int = 1

    @property
    def tree(self) -> Path:
        return self.directory / "tree"


@dataclass(eq=False, slots=True)
class Footing:
    """What one sandbox, or snapshot, stands on."""

    image: Image
    lowers: tuple[Path, ...]
    """Its layers, topmost first."""
    stored: tuple[str, ...]
    live: LiveLayer | None
    hold: Hold
    released: bool = False


class Layers:
    """Resolves images. Every footing that was got from here must be released."""

    def __init__(self, store: Store, directory: Path, owner: str, floor: Path) -> None:
        """`directory`: where live layers are kept; `floor`: what lies below every image."""
        self._store = store
        self._directory = directory
        self._owner = owner
        self._floor = floor
        self._live: dict[str, LiveLayer] = {}
        self._numbers = itertools.count(1)
        self._removals: set[asyncio.Task[None]] = set()

    async def resolve(self, image: Image) -> Footing:
        """Stand on an image. Raises InvalidRequest for a missing layer, Unsupported, CapacityError."""
        stored = tuple(layer for layer in image.layers if not layer.startswith("live:"))
        for layer in stored:
            self._store.tree(layer)
        live = self._find(image.layers[len(stored) :])
        try:
            used = await self._usable(image, stored)
            hold = self._store.hold(used)
        except BaseException:
            self._drop(live)
            raise
        trees = [self._store.tree(layer) for layer in reversed(used)]
        lowers = (*([live.tree] if live else []), *trees, self._floor)
        return Footing(image, lowers, stored, live, hold)

    async def _usable(self, image: Image, stored: tuple[str, ...]) -> tuple[str, ...]:
        """The stored layers, in a number that can be mounted."""
        if image.reference or image.over_host:
            kind = "that only another engine knows" if image.reference else "over the host's own root"
            raise Unsupported(f"gVisor cannot start from an image {kind}", hint="build one over `debian:` or `oci:`")
        if len(stored) <= MAX_STORED:
            return stored
        return await in_thread_stoppable(
            lambda on_bytes: flattened(self._store, stored, bottom=True, on_bytes=on_bytes)
        )

    def nothing(self) -> Footing:
        """Stand on the floor alone."""
        return Footing(Image(), (self._floor,), (), None, self._store.hold(()))

    async def freeze(self, footing: Footing, upper: Path) -> Footing:
        """`footing` with what is in `upper` now on top of it. Raises CapacityError (the disk is full), SubstrateFailed.

        Nobody may write to `upper` meanwhile.
        """
        if len(self._live) >= MAX_LIVE:
            raise CapacityError(f"{MAX_LIVE} snapshots are kept already", hint="discard or save some")
        number = next(self._numbers)
        layer = LiveLayer(f"live:{self._owner}-{number}", self._directory / f"live-{number}")
        below = [footing.live.tree] if footing.live else []
        try:
            await in_thread_stoppable(lambda on_bytes: self._fill(layer, [*below, upper], on_bytes))
        except BaseException:
            await in_thread(remove_tree, layer.directory)
            raise
        self._live[layer.name] = layer
        try:
            return await self.resolve(replace(footing.image, layers=(*footing.stored, layer.name)))
        finally:
            self._drop(layer)

    def _fill(self, layer: LiveLayer, trees: list[Path], on_bytes: Callable[[int], None]) -> None:
        layer.tree.mkdir(parents=True)
        if len(trees) == 1:
            copy_tree(trees[0], layer.tree, on_bytes=on_bytes)
        else:
            merge_trees(trees, layer.tree, bottom=False, ownership=self._store.ownership, on_bytes=on_bytes)
        with contextlib.suppress(OSError):  # gVisor makes this one, for itself, whatever was there before
            (layer.tree / "dev").rmdir()

    async def save(self, footing: Footing) -> Image:
        """Put all of it into the store. Raises CapacityError, SubstrateFailed."""
        live = footing.live
        if live is None:
            return footing.image
        if live.stored is None or not self._store.has(live.stored):
            tree, store = live.tree, self._store
            adopted = await in_thread_stoppable(
                lambda on_bytes: store.adopt(tree, "built", link=True, on_bytes=on_bytes)
            )
            live.stored = adopted.digest
        return replace(footing.image, layers=(*footing.stored, live.stored))

    def release(self, footing: Footing) -> None:
        """Stand on it no longer. Idempotent."""
        if footing.released:
            return
        footing.released = True
        self._drop(footing.live)
        footing.hold.release()

    async def close(self) -> None:
        """Wait for removals that are under way."""
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _find(self, names: Iterable[str]) -> LiveLayer | None:
        found = None
        for name in names:
            if found is not None or name not in self._live:
                hint = "keep the snapshot until the last sandbox was started from it, or save it"
                raise InvalidRequest(f"layer {name!r} is not kept here any more", hint=hint)
            found = self._live[name]
        if found is not None:
            found.references += 1
        return found

    def _drop(self, layer: LiveLayer | None) -> None:
        if layer is None:
            return
        layer.references -= 1
        if layer.references == 0:
            del self._live[layer.name]
            removal = asyncio.get_running_loop().create_task(asyncio.to_thread(remove_tree, layer.directory))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)
