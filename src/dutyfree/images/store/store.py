"""The store, whole."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from dutyfree.errors import InvalidRequest
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import check, documents, locks, staging
from dutyfree.images.store.holds import FreshHolds, Hold, Holds
from dutyfree.images.store.layers import LayerInfo, Layers
from dutyfree.images.store.layout import Layout, default_store, hex_of, wrap_disk_full
from dutyfree.images.store.names import NamedImage, Names, by_digest, named_now, unknown
from dutyfree.images.store.prune import Pruned, StageUse, plan
from dutyfree.images.store.stages import CachedStage, Stages
from dutyfree.images.store.usage import Usage, account
from dutyfree.images.trees import copy_tree
from dutyfree.images.trees.pack import pack
from dutyfree.model.image import Image


class Store:
    """Layers, images and stages in one directory, shared by all processes of one user.

    Any number of processes may use it at once, and any of them may be killed at any moment: things come and go by one
    rename each. Methods block, for as long as the disk takes; all may be called from any thread. All of them raise
    CapacityError when the disk is full.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_store()).absolute()
        self.ownership = Ownership.here()
        self._layout = Layout(self.root)
        self._holds = Holds(self._layout.layers)
        self._layers = Layers(self._layout.layers, self._holds)
        self._names = Names(self._layout.names)
        self._stages = Stages(self._layout.stages)
        self._fresh = FreshHolds()

    @property
    def layers_directory(self) -> Path:
        """Where layers are: `HEX/tree` below it holds the files of `sha256:HEX`."""
        return self._layout.layers

    def open(self) -> Self:
        """Make the directories, and remove what killed processes left. Call it before anything else.

        Raises InvalidRequest for a directory that is not this user's own, or was made by another kind of user or
        release; SubstrateUnavailable where none can be made.
        """
        with wrap_disk_full():
            self._layout.prepare(self.ownership)
            staging.sweep(self._layout.staging)
            staging.sweep_locks(self._layout.builds)
        return self

    def close(self) -> None:
        """Let go of every layer that is held through this object."""
        self._holds.drop_all()

    # Layers

    def tree(self, layer: str) -> Path:
        """The layer's files, to be read only. Raises InvalidRequest when it is not there."""
        return self._layers.tree(layer)

    def has(self, layer: str) -> bool:
        """Whether the layer is there, undamaged as far as can be seen without looking at its files."""
        return self._layers.has(layer)

    def layer(self, layer: str) -> LayerInfo:
        """What is known of the layer. Raises InvalidRequest when it is not there, or damaged."""
        return self._layers.info(layer)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory on the same disk, removed at the end, or by the next `open()` if we are killed."""
        with staging.staged(self._layout.staging) as directory:
            yield directory

    def add(self, tree: Path, digest: str, origin: str, *, canonical: bool = False) -> LayerInfo:
        """Make the layer `digest` of a finished tree in a staging directory; the tree is gone from there afterwards.

        `canonical` says that `digest` is that of our own archive of the tree: a deep check can compute it again then.
        If the layer is there already, that one is kept. Either way this process holds it until an image that has it is
        tagged or remembered, so that nobody prunes it before.
        """
        if self._layout.staging not in tree.absolute().parents[1:] or tree.is_symlink() or not tree.is_dir():
            raise InvalidRequest(f"{str(tree)!r} is not a directory in a staging directory of this store")
        with wrap_disk_full():
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
        """Make a layer of a copy of a tree anywhere, named by the digest of its archive; held as after `add`.

        `link` makes hard links instead of copies where it can: for trees whose files never change again. `leave_out`
        says which files are not to be in it.
        """
        with self.staging() as directory:
            copy = directory / "tree"
            copy_tree(tree, copy, link=link, on_bytes=on_bytes, leave_out=leave_out)
            # Read again, and counted once: a listener hears of 0 bytes, so that it can end this, too.
            digest = pack(copy, None, self.ownership, None if on_bytes is None else lambda _bytes: on_bytes(0))
            return self.add(copy, digest, origin, canonical=True)

    def hold(self, layers: Iterable[str]) -> Hold:
        """Keep layers from being pruned until the hold is released, or this process ends.

        Raises InvalidRequest for a layer that is not there: it may have been pruned since it was looked up.
        """
        return self._holds.take(layers)

    def keep(self, layers: Iterable[str]) -> None:
        """Hold layers that are there as `add` does: until an image that has them is tagged or remembered.

        Raises InvalidRequest for a layer that is not there.
        """
        for layer in layers:
            self._fresh.put(layer, self._holds.take([layer]))

    # Stages

    def recall(self, stage: str) -> Image | None:
        """The image that the stage gave, if all of it is still there; the stage counts as used now."""
        try:
            cached = self._stages.get(stage)
        except documents.Broken:
            return None
        if cached is None or not all(self._layers.has(layer) for layer in cached.image.layers):
            return None
        self._stages.touch(stage)
        return cached.image

    def remember(self, stage: str, image: Image, *, title: str) -> None:
        """Let `recall` give this image for the stage. Raises InvalidRequest unless all of its layers are there."""
        with self._referring_to(image):
            self._stages.put(stage, image, title, self._layout.draft)

    def stages(self) -> list[CachedStage]:
        """All stages that are remembered, by digest; damaged ones are left out."""
        return self._stages.all()[0]

    @contextlib.contextmanager
    def building(self, stage: str, timeout_s: float) -> Iterator[None]:
        """Be the only one who builds the stage, among all processes and threads.

        Waits for others in this thread; `try_building` does not wait. Raises CapacityError after `timeout_s`.
        """
        with wrap_disk_full():
            lock = locks.wait(self._build_lock(stage), timeout_s, f"the build of stage {stage}")
        try:
            yield
        finally:
            lock.release(remove=True)

    def try_building(self, stage: str) -> locks.FileLock | None:
        """The lock of `building`, or None while somebody else has it. To be released with `release(remove=True)`."""
        with wrap_disk_full():
            return locks.attempt(self._build_lock(stage))

    # Names

    def tag(self, name: str, image: Image, *, source: str = "") -> NamedImage:
        """Let a name stand for an image from now on. Raises InvalidRequest unless all of its layers are there."""
        named = named_now(name, image, source)
        with self._referring_to(image):
            self._names.put(named, self._layout.draft)
        return named

    def untag(self, name: str) -> None:
        """Forget a name; its layers go with the next prune. Raises InvalidRequest when there is no such name."""
        with locks.waiting(self._layout.lock):
            if not self._names.remove(name):
                raise unknown(name, self._names.written())

    def find(self, wanted: str) -> NamedImage:
        """The image of this name, of this digest, or whose digest begins with these 6 or more digits.

        Raises InvalidRequest when there is none, or more than one, or when what is known of it is damaged.
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
        """All that have a name, by name; damaged ones are left out, `check` tells of them."""
        return self._names.all()[0]

    # Housekeeping

    def usage(self) -> Usage:
        """What the store takes, by who needs it."""
        # Looking for holds takes exclusive locks for an instant: two who look at once would see each other.
        with locks.waiting(self._layout.lock):
            named = {each.name: each.image.layers for each in self.images() if each.name is not None}
            cached = [stage.image.layers for stage in self.stages()]
            return account(self._sizes_bytes(), named, cached, self._held())

    def check(self, *, deep: bool = False) -> list[str]:
        """Everything that is wrong; nothing is mended. `deep` reads all files, and recomputes the digests it can."""
        with locks.waiting(self._layout.lock):
            found = list(check.problems(self._layout, self._layers, self._names, self._stages))
        for layer in self._layers.all() if deep else ():
            with contextlib.suppress(InvalidRequest), self.hold([layer]):  # pruned meanwhile, or told of already
                found += check.changes(self.tree(layer), self.layer(layer), self.ownership)
        return found

    def prune(
        self, *, older_than_s: float | None = None, keep_bytes: int | None = None, dry_run: bool = False
    ) -> Pruned:
        """Remove layers that nothing reaches, after forgetting stages: damaged ones, those that were not used for
        `older_than_s`, and then the least recently used until `keep_bytes` are left.

        Names, what they reach, and what is held stay. Raises InvalidRequest if a name is damaged: nobody knows what it
        reaches.
        """
        # No file is made for all of this: it is what one does when the disk is full.
        with (
            wrap_disk_full(),
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
            [named.image.layers for named in images],
            [StageUse(stage.digest, stage.image.layers, stage.used_s) for stage in cached],
            self._held(),
            now_s=time.time(),
            older_than_s=older_than_s,
            keep_bytes=keep_bytes,
        )
        stages, layers = (*damaged_stages, *planned.stages), planned.layers
        if not dry_run:
            # Stages first: no moment at which one is remembered whose layers have gone.
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
        """Nothing is pruned inside, where a reference to the image is published; all of its layers are there."""
        if not image.is_stored:
            raise InvalidRequest("an image with live layers cannot be kept", hint="save the snapshot first")
        with wrap_disk_full(), locks.waiting(self._layout.lock):
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
