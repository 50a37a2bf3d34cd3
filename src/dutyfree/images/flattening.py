"""Shortens long chains of layers, because each layer slows down the lookup of a missing file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Final

from dutyfree.images.store import Store
from dutyfree.images.trees.layers import merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.model import Image

KEPT_ON_TOP: Final = 8
"""The number of topmost layers that are not merged, because images often differ in them."""
_TIMEOUT_S: Final = 3600.0


def flattened(
    store: Store, layers: tuple[str, ...], *, bottom: bool, on_bytes: Callable[[int], None] | None = None
) -> tuple[str, ...]:
    """The same content in fewer layers: all but the topmost ones become one layer, which the store caches.

    `bottom` says that no layer lies below them. Blocks; `on_bytes` may raise to stop it. Raises InvalidRequest for a
    missing layer, CapacityError and SubstrateFailed.
    """
    low, high = layers[:-KEPT_ON_TOP], layers[-KEPT_ON_TOP:]
    key = "sha256:" + hashlib.sha256(json.dumps(["flattened", bottom, low]).encode()).hexdigest()
    image = store.recall(key)
    if image is None:
        with store.building(key, _TIMEOUT_S):
            image = store.recall(key) or _merged(store, key, low, bottom, on_bytes)
    return (*image.layers, *high)


def _merged(
    store: Store, key: str, layers: tuple[str, ...], bottom: bool, on_bytes: Callable[[int], None] | None
) -> Image:
    with store.staging() as scratch, store.hold(layers):
        tree = scratch / "tree"
        trees = [store.tree(layer) for layer in layers]
        merge_trees(trees, tree, bottom=bottom, ownership=store.ownership, link=True, on_bytes=on_bytes)
        made = store.add(tree, pack(tree, None, store.ownership, on_bytes), "flattened", canonical=True)
        image = Image((made.digest,), over_host=not bottom)
        store.remember(key, image, title=f"{len(layers)} merged layers")
    return image
