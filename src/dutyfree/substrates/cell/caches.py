"""The versions of caches that a cell sees, and what it has written in them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.images.store import Hold, Store
from dutyfree.model import Cache, SandboxSpec
from dutyfree.substrates.cell.frozen import FrozenLayer

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class CacheLower:
    """What lies below a cell's copy of a cache."""

    path: str = ""
    """The directory of the version in the spawner's root; empty if the cache has none."""
    owner: int | None = None
    """The id that the version's directory belongs to; None for the cell's root."""


@dataclass(frozen=True, slots=True)
class CacheVersions:
    """The versions for one cell, kept until `release`."""

    lowers: tuple[CacheLower, ...] = ()
    hold: Hold | None = None

    def release(self) -> None:
        """Let go of the versions."""
        if self.hold is not None:
            self.hold.release()


NO_CACHES: Final = CacheVersions()


def find_versions(store: Store, caches: Sequence[Cache], *, rootless: bool) -> CacheVersions:
    """The present versions of caches. Raises CapacityError if they are replaced all the time."""
    for _ in range(_ATTEMPTS):
        found = [store.cache(each.owner, each.name) for each in caches]
        layers = [each.layer if each is not None and store.has(each.layer) else None for each in found]
        with contextlib.suppress(InvalidRequest):  # another process has replaced and removed one just now
            hold = store.hold([layer for layer in layers if layer is not None])
            return CacheVersions(tuple(_lower(store, layer, rootless) for layer in layers), hold)
    raise CapacityError("the versions of the caches are being replaced", hint="try again")


def _lower(store: Store, layer: str | None, rootless: bool) -> CacheLower:
    if layer is None:
        return CacheLower()
    owner = None if rootless else store.tree(layer).stat().st_uid
    return CacheLower(f"/layers/{layer.removeprefix('sha256:')}/tree", owner)


def written(shown: FrozenLayer, number: int) -> Path:
    """Where this process finds what a cell has written in its cache of this number."""
    return shown.tree.parent / "caches" / str(number)


def find_cache(spec: SandboxSpec, name: str) -> tuple[Cache, int]:
    """The cache of this name, and its number. Raises InvalidRequest if the spec has none."""
    for number, cache in enumerate(spec.caches):
        if cache.name == name:
            return cache, number
    hint = f"it has {', '.join(each.name for each in spec.caches)}" if spec.caches else "lease with caches=[...]"
    raise InvalidRequest(f"the sandbox has no cache {name!r:.80}", hint=hint)
