"""The layers below a sandbox: layers of the image store, and above them at most one live layer of a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest, Unsupported
from dutyfree.failure import await_on_failure, on_failure
from dutyfree.images.flattening import flattened
from dutyfree.images.store import Hold, Store
from dutyfree.images.trees.layers import copy_tree, merge_trees
from dutyfree.model import Image
from dutyfree.removal import remove_tree
from dutyfree.threads import in_thread, in_thread_stoppable

MAX_STORED: Final = 16
"""The paths of all layers must fit into one page, the kernel's limit for mount options."""
MAX_LIVE: Final = 512


@dataclass(eq=False, slots=True)
class LiveLayer:
    """The changes of a sandbox at one moment. Removed with its last reference."""

    name: str
    """The layer's name in `Image.layers`."""
    directory: Path
    stored: str | None = None
    """The layer's name in the image store, once it was saved."""
    references: int = 1

    @property
    def tree(self) -> Path:
        return self.directory / "tree"


@dataclass(eq=False, slots=True)
class LayerStack:
    """The layers below one sandbox, or of one snapshot, and the references that keep them."""

    image: Image
    lowers: tuple[Path, ...]
    """The directories of the layers, topmost first."""
    stored: tuple[str, ...]
    live: LiveLayer | None
    hold: Hold
    released: bool = False


class Layers:
    """Resolves images to stacks of layers. The caller must release every stack."""

    def __init__(self, store: Store, directory: Path, owner: str, bottom: Path) -> None:
        """`directory`: where live layers are kept; `bottom`: the layer below every image."""
        self._store = store
        self._directory = directory
        self._owner = owner
        self._bottom = bottom
        self._live: dict[str, LiveLayer] = {}
        self._numbers = itertools.count(1)
        self._removals: set[asyncio.Task[None]] = set()

    async def resolve(self, image: Image) -> LayerStack:
        """The stack of an image. Raises InvalidRequest for a missing layer, Unsupported, CapacityError."""
        stored = tuple(layer for layer in image.layers if not layer.startswith("live:"))
        for layer in stored:
            self._store.tree(layer)
        live = self._find(image.layers[len(stored) :])
        with on_failure(self._drop, live):
            used = await self._usable(image, stored)
            hold = self._store.hold(used)
        trees = [self._store.tree(layer) for layer in reversed(used)]
        lowers = (*([live.tree] if live else []), *trees, self._bottom)
        return LayerStack(image, lowers, stored, live, hold)

    async def _usable(self, image: Image, stored: tuple[str, ...]) -> tuple[str, ...]:
        """The stored layers, flattened if there are too many to mount."""
        if image.reference or image.over_host:
            kind = "of another engine" if image.reference else "over the host's own root"
            raise Unsupported(f"gVisor cannot start from an image {kind}", hint="build one over `debian:` or `oci:`")
        if len(stored) <= MAX_STORED:
            return stored
        return await in_thread_stoppable(
            lambda on_bytes: flattened(self._store, stored, bottom=True, on_bytes=on_bytes)
        )

    def empty_stack(self) -> LayerStack:
        """A stack of the bottom layer alone."""
        return LayerStack(Image(), (self._bottom,), (), None, self._store.hold(()))

    async def freeze(self, stack: LayerStack, upper: Path) -> LayerStack:
        """A new stack: `stack` with the current content of `upper` as a live layer on top.

        The caller makes sure that `upper` does not change meanwhile. Raises CapacityError (the disk is full),
        SubstrateFailed.
        """
        if len(self._live) >= MAX_LIVE:
            raise CapacityError(f"{MAX_LIVE} snapshots are kept already", hint="discard or save some")
        number = next(self._numbers)
        layer = LiveLayer(f"live:{self._owner}-{number}", self._directory / f"live-{number}")
        below = [stack.live.tree] if stack.live else []
        async with await_on_failure(in_thread, remove_tree, layer.directory):
            await in_thread_stoppable(lambda on_bytes: self._fill(layer, [*below, upper], on_bytes))
        self._live[layer.name] = layer
        try:
            return await self.resolve(replace(stack.image, layers=(*stack.stored, layer.name)))
        finally:
            self._drop(layer)

    def _fill(self, layer: LiveLayer, trees: list[Path], on_bytes: Callable[[int], None]) -> None:
        layer.tree.mkdir(parents=True)
        if len(trees) == 1:
            copy_tree(trees[0], layer.tree, on_bytes=on_bytes)
        else:
            merge_trees(trees, layer.tree, bottom=False, ownership=self._store.ownership, on_bytes=on_bytes)
        with contextlib.suppress(OSError):  # gVisor always makes /dev, so an empty one is no change of the sandbox
            (layer.tree / "dev").rmdir()

    async def save(self, stack: LayerStack) -> Image:
        """Put the live layer into the store, and return the stored image. Raises CapacityError, SubstrateFailed."""
        live = stack.live
        if live is None:
            return stack.image
        if live.stored is None or not self._store.has(live.stored):
            tree, store = live.tree, self._store
            adopted = await in_thread_stoppable(
                lambda on_bytes: store.adopt(tree, "built", link=True, on_bytes=on_bytes)
            )
            live.stored = adopted.digest
        return replace(stack.image, layers=(*stack.stored, live.stored))

    def release(self, stack: LayerStack) -> None:
        """Drop the stack's references to its layers. Idempotent."""
        if stack.released:
            return
        stack.released = True
        self._drop(stack.live)
        stack.hold.release()

    async def close(self) -> None:
        """Wait until all running removals have ended."""
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
