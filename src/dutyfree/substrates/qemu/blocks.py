"""An image's layers as one read-only file system on a block device, made once and kept under the image's digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import BinaryIO, Final, cast

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.archive.pack import pack
from dutyfree.images.commands import bound_to_us
from dutyfree.images.store import Store, locks
from dutyfree.images.trees import merge_trees
from dutyfree.model import Image

CAPACITY_BYTES: Final = 64 * 1024**3
"""Every device is this big, whatever is on it: a saved machine has seen its size, and wakes up to another image."""
_KEPT: Final = 16
_BUILD_TIMEOUT_S: Final = 1800.0
_FORMAT: Final = ("-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet", "-force")
"""Not compressed: unpacking costs an emulated processor more than reading costs the host."""


def blank(directory: Path) -> Path:
    """A device with nothing on it."""
    path = directory / "blank"
    if not path.exists() or path.stat().st_size != CAPACITY_BYTES:
        path.touch(mode=0o600)
        os.truncate(path, CAPACITY_BYTES)
    return path


def key(layers: tuple[str, ...]) -> str:
    """Names the content of an image's layers, in the form in which they are written here."""
    return hashlib.sha256(json.dumps([layers, _FORMAT, CAPACITY_BYTES]).encode()).hexdigest()[:40]


def block_image(store: Store, image: Image, directory: Path) -> Path:
    """The device with the image's files, in `directory`. Blocks; the first time it reads and writes all of them.

    Raises InvalidRequest for layers that are not there, or an image over the host's root; CapacityError,
    SubstrateUnavailable, SubstrateFailed.
    """
    for layer in image.layers:
        if not layer.startswith("sha256:") or not store.has(layer):
            raise InvalidRequest(f"there is no layer {layer}", hint="import or build its image")
    if image.over_host:
        raise InvalidRequest("a machine cannot start from layers over the host's root", hint="build on another base")
    name = key(image.layers)
    path = directory / f"{name}.squashfs"
    if not path.exists():
        with locks.waiting(directory / f"{name}.lock", _BUILD_TIMEOUT_S, "the block image's maker"):
            if not path.exists():
                _build(store, image, path)
                _trim(directory)
    os.utime(path)
    return path


def _build(store: Store, image: Image, path: Path) -> None:
    with store.hold(image.layers), store.staging() as staging:
        trees = [store.tree(layer) for layer in image.layers]
        tree = trees[0]
        if len(trees) > 1:
            tree = staging / "tree"
            merge_trees(trees, tree, bottom=True, ownership=store.ownership, link=True)
        draft = path.with_suffix(".draft")
        try:
            _write(store, tree, draft)
            os.truncate(draft, CAPACITY_BYTES)
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)


def _write(store: Store, tree: Path, draft: Path) -> None:
    try:
        maker = subprocess.Popen(
            [*bound_to_us(), "sqfstar", *_FORMAT, str(draft)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise SubstrateUnavailable(f"sqfstar: {error}", hint="Debian: apt-get install squashfs-tools") from error
    with maker:
        assert maker.stdin is not None
        assert maker.stderr is not None
        try:
            with contextlib.suppress(BrokenPipeError), maker.stdin as archive:
                pack(tree, cast("BinaryIO", archive), store.ownership)
        except BaseException:
            maker.kill()
            raise
        words = maker.stderr.read(4096).decode("utf-8", "replace").strip()
        if maker.wait(_BUILD_TIMEOUT_S):
            full = "No space left" in words
            raise (CapacityError if full else SubstrateFailed)(f"no block image could be made: {words[-500:]}")


def _trim(directory: Path) -> None:
    """Devices that machines still have open stay theirs."""
    known = sorted(directory.glob("*.squashfs"), key=lambda path: path.stat().st_mtime_ns)
    for path in known[:-_KEPT]:
        path.unlink(missing_ok=True)
