"""Layers on disk: one rename publishes a layer, and one rename removes it."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from dataclasses import asdict
from pathlib import Path

from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.images.store import documents, staging
from dutyfree.images.store.holds import DESCRIPTION, Hold, Holds, missing
from dutyfree.images.store.layout import hex_of, is_hex
from dutyfree.values import dataclass

TREE = "tree"
_ATTEMPTS = 10
_THERE_ALREADY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """The description of a layer."""

    digest: str
    size_bytes: int
    entries: int
    created_s: float
    """Unix time."""
    origin: str
    canonical: bool = False
    """Whether the digest is the digest of our own tar of the tree, so that a check can recompute it."""


class Layers:
    """The directory of layers."""

    def __init__(self, directory: Path, holds: Holds) -> None:
        self._directory = directory
        self._holds = holds

    def place(self, layer: str) -> Path:
        """The directory of the layer, which may be missing. Raises InvalidRequest for an invalid digest."""
        return self._directory / hex_of(layer)

    def tree(self, layer: str) -> Path:
        """The directory of the layer's files. Raises InvalidRequest if the layer is missing."""
        tree = self.place(layer) / TREE
        if not tree.is_dir():
            raise missing(layer)
        return tree

    def info(self, layer: str) -> LayerInfo:
        """The layer's description. Raises InvalidRequest if the layer is missing or damaged."""
        place = self.place(layer)
        try:
            info = _parsed(documents.read(place / DESCRIPTION))
        except (documents.Broken, FileNotFoundError) as error:
            raise (_damaged(layer, str(error)) if place.exists() else missing(layer)) from error
        if info.digest != layer:
            raise _damaged(layer, f"its description names the digest {info.digest}")
        if not (place / TREE).is_dir():
            raise _damaged(layer, "it has no files")
        return info

    def has(self, layer: str) -> bool:
        """Whether the layer exists and is undamaged."""
        try:
            self.info(layer)
        except InvalidRequest:
            return False
        return True

    def all(self) -> list[str]:
        """The digests of all layers, including damaged ones."""
        return sorted(f"sha256:{path.name}" for path in self._directory.iterdir() if is_hex(path.name))

    def origin(self, layer: str) -> str:
        """What made the layer; empty for a damaged one."""
        try:
            return self.info(layer).origin
        except InvalidRequest:
            return ""

    def size_bytes(self, layer: str) -> int:
        """The disk space of the layer, even if it is damaged."""
        try:
            return self.info(layer).size_bytes
        except InvalidRequest:
            from dutyfree.images.trees.layers import measure  # most programs start sandboxes, and make no layers

            place = self.place(layer)
            return measure(place).bytes if place.is_dir() else 0

    def add(self, tree: Path, digest: str, origin: str, *, canonical: bool) -> tuple[LayerInfo, Hold]:
        """Make a layer from a tree in a staging directory, and hold it; if the layer exists, the tree is dropped.

        A damaged layer is replaced. Raises SubstrateFailed if a damaged layer is in use.
        """
        from dutyfree.images.trees.layers import measure

        place, new = self.place(digest), tree.parent / f"layer-{os.urandom(8).hex()}"
        size = measure(tree)
        info = LayerInfo(digest, size.bytes, size.entries, time.time(), origin, canonical)
        new.mkdir(mode=0o700)
        _move_tree(tree, new / TREE)
        documents.write(asdict(info), new / DESCRIPTION)
        for _ in range(_ATTEMPTS):
            fd = self._holds.take_unpublished(new / DESCRIPTION)
            try:
                new.rename(place)
            except OSError as error:
                os.close(fd)
                if error.errno not in _THERE_ALREADY:
                    raise
            else:
                return info, self._holds.published(digest, fd)
            with contextlib.suppress(InvalidRequest):  # another process pruned the layer just now, or it is damaged
                hold = self._holds.take([digest])
                try:
                    return self.info(digest), hold
                except InvalidRequest:
                    hold.release()
            self._take_damaged_away(digest, new.parent)
        raise SubstrateFailed(
            f"layer {digest} is damaged and in use", hint="end the sandboxes that use it, and try again"
        )

    def take_away(self, layer: str, area: Path) -> Path | None:
        """Move the layer to `area` as garbage and return its path there; None if the layer is held or missing."""
        with self._holds.exclusively(layer) as free:
            if not free:
                return None
            try:
                return self._move(layer, area)
            except FileNotFoundError:
                return None

    def _take_damaged_away(self, layer: str, area: Path) -> None:
        with self._holds.exclusively(layer) as free, contextlib.suppress(FileNotFoundError):
            # Check again under the lock: another process may have replaced it by an undamaged layer, which must stay.
            if free and not self.has(layer):
                self._move(layer, area)

    def _move(self, layer: str, area: Path) -> Path:
        return self.place(layer).rename(staging.garbage_path(area))


def _move_tree(tree: Path, target: Path) -> None:
    # The kernel moves a directory to another one only for who may write to it, and roots of images are often read-only.
    mode = stat.S_IMODE(tree.stat().st_mode)
    if mode & stat.S_IWUSR:
        tree.rename(target)
    else:
        tree.chmod(mode | stat.S_IWUSR)
        tree.rename(target)
        target.chmod(mode)


def _parsed(data: dict[str, object]) -> LayerInfo:
    match data:
        case {
            "digest": str(digest),
            "size_bytes": int(size_bytes),
            "entries": int(entries),
            "created_s": int() | float() as created_s,
            "origin": str(origin),
            "canonical": bool(canonical),
        } if size_bytes >= 0 and entries >= 0 and math.isfinite(created_s):
            return LayerInfo(digest, size_bytes, entries, created_s, origin, canonical)
    raise documents.Broken(f"{DESCRIPTION} does not describe a layer")


def _damaged(layer: str, why: str) -> InvalidRequest:
    hint = "build or import its image again"
    return InvalidRequest(f"layer {layer} is damaged: {why}", hint=hint)
