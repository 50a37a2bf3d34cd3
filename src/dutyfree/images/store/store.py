"""The store: layers, names, caches and cached stages behind one class."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import documents, locks, staging
from dutyfree.images.store.caches import ORIGIN, Caches, CacheVersion, cache_key
from dutyfree.images.store.holds import FreshHolds, Hold, Holds
from dutyfree.images.store.layers import LayerInfo, Layers
from dutyfree.images.store.layout import Layout, default_store, hex_of, wrap_full_disk
from dutyfree.images.store.names import NamedImage, Names, by_digest, named_now, unknown
from dutyfree.images.store.prune import Pruned, StageUse, plan
from dutyfree.images.store.stages import CachedStage, Stages
from dutyfree.images.store.usage import Usage, account
from dutyfree.model.image import Image


class Store:
    """Layers, images and stages in one directory, shared by all processes of one user.

    Any number of processes may use it at the same time, and each may be killed at any moment: one rename publishes or
    removes an entry. Methods block on disk I/O and may be called from any thread. All methods raise CapacityError if
    the disk is full.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_store()).absolute()
        self.ownership = Ownership.here()
        self._layout = Layout(self.root)
        self._holds = Holds(self._layout.layers)
        self._layers = Layers(self._layout.layers, self._holds)
        self._names = Names(self._layout.names)
        self._caches = Caches(self._layout.caches)
        self._stages = Stages(self._layout.stages)
        self._fresh = FreshHolds()

    @property
    def layers_directory(self) -> Path:
        """The directory of layers: its `HEX/tree` has the files of layer `sha256:HEX`."""
        return self._layout.layers

    def open(self) -> Self:
        """Make the directories, and remove leftovers of killed processes. Call it before all other methods.

        Raises InvalidRequest for a directory that this user does not own, or that another kind of user or another
        release made; SubstrateUnavailable if the directory cannot be made.
        """
        with wrap_full_disk():
            self._layout.prepare(self.ownership)
            staging.sweep(self._layout.staging)
            staging.sweep_locks(self._layout.builds)
        return self

    def close(self) -> None:
        """Release all layers that this object holds."""
        self._holds.drop_all()

    # Layers

    def tree(self, layer: str) -> Path:
        """The directory of the layer's files, read-only for the caller. Raises InvalidRequest if it is missing."""
        return self._layers.tree(layer)

    def has(self, layer: str) -> bool:
        """Whether the layer exists and is undamaged, as far as its description shows."""
        return self._layers.has(layer)

    def layer(self, layer: str) -> LayerInfo:
        """The layer's description. Raises InvalidRequest if the layer is missing or damaged."""
        return self._layers.info(layer)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Make an empty directory on the same disk, removed at the end or, after a kill, by the next `open()`."""
        with staging.staged(self._layout.staging) as directory:
            yield directory

    def add(self, tree: Path, digest: str, origin: str, *, canonical: bool = False) -> LayerInfo:
        """Make the layer `digest` from a finished tree in a staging directory; the tree is moved or removed.

        `canonical` says that `digest` is the digest of our own tar of the tree, so that a deep check can recompute it.
        If the layer exists, the store keeps it. In both cases this process holds the layer until an image with it is
        tagged or remembered, so that no prune removes it before.
        """
        if self._layout.staging not in tree.absolute().parents[1:] or tree.is_symlink() or not tree.is_dir():
            raise InvalidRequest(f"{str(tree)!r} is not a directory in a staging directory of this store")
        with wrap_full_disk():
            info, hold = self._layers.add(tree, digest, origin, canonical=canonical)
        self._fresh.put(digest, hold)
        return info

    def adopt(
        self,
        tree: Path,
        origin: str,
        *,
        link: bool = False,
        on_bytes: Callable[[int], None] | None = None,
        leave_out: Callable[[os.stat_result], bool] | None = None,
    ) -> LayerInfo:
        """Make a layer from a copy of a tree; its digest is that of the tree's tar. It is held as after `add`.

        `link` makes hard links instead of copies if possible, for trees whose files never change. `leave_out` selects
        files to skip.
        """
        from dutyfree.images.trees.layers import copy_tree
        from dutyfree.images.trees.pack import pack  # most programs start sandboxes, and make no layers

        with self.staging() as directory:
            copy = directory / "tree"
            copy_tree(tree, copy, link=link, on_bytes=on_bytes, leave_out=leave_out)
            # This reads the tree a second time, so `on_bytes` gets 0 bytes, and can still raise to stop.
            digest = pack(copy, None, self.ownership, None if on_bytes is None else lambda _bytes: on_bytes(0))
            return self.add(copy, digest, origin, canonical=True)

    def hold(self, layers: Iterable[str]) -> Hold:
        """Keep layers from being pruned until the hold is released or this process ends.

        Raises InvalidRequest for a missing layer: it may have been pruned after the caller looked it up.
        """
        return self._holds.take(layers)

    def keep(self, layers: Iterable[str]) -> None:
        """Hold existing layers as `add` does: until an image with them is tagged or remembered.

        Raises InvalidRequest for a missing layer.
        """
        for layer in layers:
            self._fresh.put(layer, self._holds.take([layer]))

    # Stages

    def recall(self, stage: str) -> Image | None:
        """The image of a cached stage, if all its layers exist; None otherwise. Marks the stage as used now."""
        try:
            cached = self._stages.get(stage)
        except documents.Broken:
            return None
        if cached is None or not all(self._layers.has(layer) for layer in cached.image.layers):
            return None
        self._stages.touch(stage)
        return cached.image

    def remember(self, stage: str, image: Image, *, title: str) -> None:
        """Cache the image of a stage for `recall`. Raises InvalidRequest unless all its layers exist."""
        with self._referring_to(image):
            self._stages.put(stage, image, title, self._layout.draft)

    def stages(self) -> list[CachedStage]:
        """All cached stages, sorted by digest, without damaged ones."""
        return self._stages.all()[0]

    @contextlib.contextmanager
    def building(self, stage: str, timeout_s: float) -> Iterator[None]:
        """Hold the lock for building a stage, against all other processes and threads.

        Blocks this thread while others build it; `try_building` does not block. Raises CapacityError after `timeout_s`.
        """
        with wrap_full_disk():
            lock = locks.wait(self._build_lock(stage), timeout_s, f"the build of stage {stage}")
        try:
            yield
        finally:
            lock.release(remove=True)

    def try_building(self, stage: str) -> locks.FileLock | None:
        """The lock of `building`, or None if another builder has it. Release it with `release(remove=True)`."""
        with wrap_full_disk():
            return locks.attempt(self._build_lock(stage))

    # Names

    def tag(self, name: str, image: Image, *, source: str = "") -> NamedImage:
        """Set the image of a name, in place of an earlier one. Raises InvalidRequest unless all its layers exist."""
        named = named_now(name, image, source)
        with self._referring_to(image):
            self._names.put(named, self._layout.draft)
        return named

    def untag(self, name: str) -> None:
        """Remove a name; the next prune removes its layers if nothing else needs them. Raises InvalidRequest."""
        with locks.waiting(self._layout.lock):
            if not self._names.remove(name):
                raise unknown(name, self._names.written())

    def find(self, wanted: str) -> NamedImage:
        """The image with this name or digest, or whose digest starts with these 6 or more digits.

        Raises InvalidRequest if there is none or more than one, or if its entry is damaged.
        """
        names = self._names.written()
        found = self._names.get(wanted) if wanted in names else None
        if found is None:
            cached = (NamedImage(None, each.image, each.created_s, each.title) for each in self.stages())
            found = by_digest(wanted, [*self.images(), *cached])
        if found is None:
            raise unknown(wanted, names)
        return found

    def images(self) -> list[NamedImage]:
        """All named images, sorted by name, without damaged ones, which `check` reports."""
        return self._names.all()[0]

    # Caches

    def cache(self, owner: str, name: str) -> CacheVersion | None:
        """The present version of a cache; None if it has none."""
        return self._caches.get(owner, name)

    def caches(self) -> list[CacheVersion]:
        """All caches, sorted by owner and name."""
        return self._caches.all()[0]

    @contextlib.contextmanager
    def filling(
        self, owner: str, name: str, timeout_s: float, on_wait: Callable[[int], None]
    ) -> Iterator[CacheVersion | None]:
        """The present version of a cache, which no other process can replace within the block.

        Blocks this thread while others fill it, and calls `on_wait(0)` meanwhile, which may raise to stop. Raises
        CapacityError after `timeout_s`.
        """
        lock = None
        for _ in locks.pauses(timeout_s):
            on_wait(0)
            lock = self.try_building(cache_key(owner, name))
            if lock is not None:
                break
        if lock is None:
            raise CapacityError(f"the cache {name!r} was busy for {timeout_s:g} s", hint="others fill it; try again")
        try:
            yield self._caches.get(owner, name)
        finally:
            lock.release(remove=True)

    def put_cache(self, owner: str, name: str, layer: str) -> None:
        """Make a layer the present version of a cache, and remove earlier versions that no sandbox uses.

        For who is `filling` it. Raises InvalidRequest unless the layer exists.
        """
        with wrap_full_disk(), staging.trash(self._layout.staging) as garbage, locks.waiting(self._layout.lock):
            self._layers.info(layer)
            self._caches.put(owner, name, layer, self._layout.draft)
            self._fresh.release([layer])
            self._drop_versions(garbage)

    def remove_cache(self, owner: str, name: str) -> None:
        """Forget a cache; sandboxes that use its versions go on. Raises InvalidRequest if there is no such cache."""
        with wrap_full_disk(), staging.trash(self._layout.staging) as garbage, locks.waiting(self._layout.lock):
            if not self._caches.remove(owner, name):
                whose = f" of {owner!r}" if owner else ""
                hint = "`dutyfree cache list` shows all caches, with their owners"
                raise InvalidRequest(f"there is no cache {name!r}{whose}", hint=hint)
            self._drop_versions(garbage)

    def _drop_versions(self, garbage: list[Path]) -> None:
        """Remove the versions of caches that are not present ones, and that no process holds."""
        present = {each.layer for each in self.caches()}
        for layer in self._layers.all():
            if layer not in present and self._layers.origin(layer) == ORIGIN:
                self._throw_away(layer, garbage)

    # Housekeeping

    def usage(self) -> Usage:
        """The disk space of the store, by what needs it."""
        # Looking for holds takes exclusive locks for a moment; two processes that look would see each other's locks.
        with locks.waiting(self._layout.lock):
            named = {each.name: each.image.layers for each in self.images() if each.name is not None}
            cached = [stage.image.layers for stage in self.stages()]
            caches = {each.layer for each in self.caches()}
            return account(self._sizes_bytes(), named, cached, self._held(), caches)

    def check(self, *, deep: bool = False) -> list[str]:
        """All problems of the store; repairs nothing. `deep` reads all files, and recomputes digests where possible."""
        from dutyfree.images.store import check

        with locks.waiting(self._layout.lock):
            found = list(check.problems(self._layout, self._layers, self._names, self._caches, self._stages))
        for layer in self._layers.all() if deep else ():
            with contextlib.suppress(InvalidRequest), self.hold([layer]):  # pruned in the meantime, or already reported
                found += check.changes(self.tree(layer), self.layer(layer), self.ownership)
        return found

    def prune(
        self, *, older_than_s: float | None = None, keep_bytes: int | None = None, dry_run: bool = False
    ) -> Pruned:
        """Forget stages, and then remove layers that nothing needs. Forgets damaged stages, those that were not used
        for `older_than_s`, and then the least recently used ones until `keep_bytes` are left.

        Names, caches, their layers, and held layers stay. Raises InvalidRequest if a name is damaged, since its layers
        are unknown.
        """
        # Makes no file, because users prune when the disk is full.
        with (
            wrap_full_disk(),
            staging.trash(self._layout.staging) as garbage,
            locks.waiting(self._layout.lock),
        ):
            return self._prune(garbage, older_than_s, keep_bytes, dry_run)

    def _prune(self, garbage: list[Path], older_than_s: float | None, keep_bytes: int | None, dry_run: bool) -> Pruned:
        images, damaged_names = self._names.all()
        if damaged_names:
            raise damaged_names[0]
        cached, damaged_stages = self._stages.all()
        sizes_bytes = self._sizes_bytes()
        planned = plan(
            sizes_bytes,
            [*(named.image.layers for named in images), *((each.layer,) for each in self.caches())],
            [StageUse(stage.digest, stage.image.layers, stage.used_s) for stage in cached],
            self._held(),
            now_s=time.time(),
            older_than_s=older_than_s,
            keep_bytes=keep_bytes,
        )
        stages, layers = (*damaged_stages, *planned.stages), planned.layers
        if not dry_run:
            # Stages first, so that no cached stage ever lacks its layers.
            for stage in stages:
                self._stages.remove(stage)
            layers = tuple(layer for layer in layers if self._throw_away(layer, garbage))
        freed_bytes = sum(sizes_bytes[layer] for layer in layers)
        return Pruned(stages, layers, freed_bytes, sum(sizes_bytes.values()) - freed_bytes, dry_run)

    def _throw_away(self, layer: str, garbage: list[Path]) -> bool:
        moved = self._layers.take_away(layer, self._layout.staging)
        garbage += [moved] if moved is not None else []
        return moved is not None

    @contextlib.contextmanager
    def _referring_to(self, image: Image) -> Iterator[None]:
        """Within the block no prune runs and all layers of the image exist, so a reference to it can be published."""
        if not image.is_stored:
            raise InvalidRequest("an image with live layers cannot be stored", hint="save the snapshot first")
        with wrap_full_disk(), locks.waiting(self._layout.lock):
            for layer in image.layers:
                self._layers.info(layer)
            yield
        self._fresh.release(image.layers)

    def _sizes_bytes(self) -> dict[str, int]:
        return {layer: self._layers.size_bytes(layer) for layer in self._layers.all()}

    def _held(self) -> set[str]:
        return {layer for layer in self._layers.all() if self._holds.is_held(layer)}

    def _build_lock(self, stage: str) -> Path:
        return self._layout.builds / f"{hex_of(stage)}.lock"
