"""An image's layers as one read-only file system on a block device, made once and kept under the image's digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from dutyfree.errors import (
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    InvalidRequest,
    SubstrateFailed,
    SubstrateUnavailable,
)
from dutyfree.images.archive.pack import pack
from dutyfree.images.commands import die_with_parent
from dutyfree.images.store import Store, locks
from dutyfree.images.trees import merge_trees
from dutyfree.model import Image
from dutyfree.substrates.qemu.refusals import told

CAPACITY_BYTES: Final = 64 * 1024**3
"""Every device is this big, whatever is on it: a saved machine has seen its size, and wakes up to another image."""
_KEPT: Final = 16
_BUILD_TIMEOUT_S: Final = 1800.0
_WORDS_BYTES: Final = 500
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


class Devices:
    """The devices of images: made in `directory`, where the last ones are kept for everybody, and held in `own`.

    Whoever holds a device finds it under a name of its own, whatever others make and take away. Blocks.
    """

    def __init__(self, directory: Path, own: Path) -> None:
        self._directory = directory
        self._own = own
        self._holders: Counter[Path] = Counter()
        self._turn = threading.Lock()

    def hold(self, store: Store, image: Image) -> Path:
        """The device with the image's files, until `release`. The first time this reads and writes all of them.

        Raises InvalidRequest for layers that are not there, or an image over the host's root; CapacityError,
        SubstrateUnavailable, SubstrateFailed, DeadlineExceeded.
        """
        for layer in image.layers:
            if not layer.startswith("sha256:") or not store.has(layer):
                raise InvalidRequest(f"there is no layer {layer}", hint="import or build its image")
        if image.over_host:
            hint = "build on another base"
            raise InvalidRequest("a machine cannot start from layers over the host's root", hint=hint)
        name = key(image.layers)
        own = self._own / f"{name}.squashfs"
        with self._turn:
            self._holders[own] += 1
        try:
            with told("no block image could be made"):
                if not own.exists():
                    with locks.waiting(self._directory / f"{name}.lock", _BUILD_TIMEOUT_S, "the block image's maker"):
                        self._link(store, image, name, own)
                os.utime(own)
        except BaseException:
            self.release(own)
            raise
        return own

    def hold_again(self, device: Path) -> None:
        """One holder more of a device that is held."""
        with self._turn:
            self._holders[device] += 1

    def release(self, device: Path) -> None:
        """One holder less; the last one takes the name away."""
        with self._turn:
            self._holders[device] -= 1
            if self._holders[device] <= 0:
                del self._holders[device]
                device.unlink(missing_ok=True)

    def _link(self, store: Store, image: Image, name: str, own: Path) -> None:
        path = self._directory / own.name
        try:
            os.link(path, own)
        except FileExistsError:  # another thread was quicker
            return
        except FileNotFoundError:
            _build(store, image, path, own)
            _trim(self._directory)


def _build(store: Store, image: Image, path: Path, own: Path) -> None:
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
            os.link(draft, own)
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)


def _write(store: Store, tree: Path, draft: Path) -> None:
    with tempfile.TemporaryFile() as said:
        try:
            maker = subprocess.Popen(
                [*die_with_parent(), "sqfstar", *_FORMAT, str(draft)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
        except OSError as error:
            raise SubstrateUnavailable(f"sqfstar: {error}", hint="Debian: apt-get install squashfs-tools") from error
        with maker, _killed_after(_BUILD_TIMEOUT_S, maker) as late:
            failure = _feed(maker, store, tree)
            code = maker.wait()
        said.seek(max(said.tell() - _WORDS_BYTES, 0))
        words = said.read(_WORDS_BYTES).decode("utf-8", "replace").strip()
    if late.is_set():
        raise DeadlineExceeded(f"no block image could be made within {_BUILD_TIMEOUT_S:g} s")
    if code:
        full = "No space left" in words
        raise (CapacityError if full else SubstrateFailed)(f"no block image could be made: {words}")
    if failure is not None:
        raise failure


def _feed(maker: subprocess.Popen[bytes], store: Store, tree: Path) -> DutyfreeError | None:
    """What kept the tree from being packed, if something did: the maker, if it ends early, knows the reason better."""
    assert maker.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError), maker.stdin as archive:
            pack(tree, cast("BinaryIO", archive), store.ownership)
    except SubstrateFailed as error:
        return error
    except BaseException:
        maker.kill()
        raise
    return None


@contextlib.contextmanager
def _killed_after(timeout_s: float, process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Set, once the process was killed because it took too long: writing to it knows no timeout."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(timeout_s, kill)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def last_used_ns(path: Path) -> int:
    """When it was; a long time ago if another process has taken it away."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _trim(directory: Path) -> None:
    for path in sorted(directory.glob("*.squashfs"), key=last_used_ns)[:-_KEPT]:
        path.unlink(missing_ok=True)
