"""Block devices of images: the layers as one read-only squashfs file, built once and kept under the image's digest."""

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
from dutyfree.failure import on_failure
from dutyfree.images.commands import die_with_parent
from dutyfree.images.store import Store, locks
from dutyfree.images.trees.layers import merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.model import Image
from dutyfree.substrates.os_errors import wrap_os_errors

CAPACITY_BYTES: Final = 64 * 1024**3
"""The size of every device, whatever image is on it: a machine saved with one device is restored with another one, and
its kernel still remembers the first one's size."""
_MAX_KEPT: Final = 16
_BUILD_TIMEOUT_S: Final = 1800.0
_STDERR_TAIL_BYTES: Final = 500
_FORMAT: Final = ("-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet", "-force", "-root-mode", "0755")
"""No compression: decompressing costs an emulated processor more than reading costs the host. A layer has no entry for
its root: without a mode of its own, every user of the machine could rename what is in `/`."""


def blank(directory: Path) -> Path:
    """An empty device."""
    path = directory / "blank"
    if not path.exists() or path.stat().st_size != CAPACITY_BYTES:
        path.touch(mode=0o600)
        os.truncate(path, CAPACITY_BYTES)
    return path


def key(layers: tuple[str, ...]) -> str:
    """The file name of the device for these layers: a digest of the layers and of the device's format."""
    return hashlib.sha256(json.dumps([layers, _FORMAT, CAPACITY_BYTES]).encode()).hexdigest()[:40]


class Devices:
    """The devices of images, built in `directory` and hard-linked into `own` while this process uses them.

    All processes of the user share `directory`, which keeps the most recently used devices. A hard link keeps a device
    available while another process removes it from there. Methods block.
    """

    def __init__(self, directory: Path, own: Path) -> None:
        self._directory = directory
        self._own = own
        self._holders: Counter[Path] = Counter()
        self._lock = threading.Lock()

    def hold(self, store: Store, image: Image) -> Path:
        """The device with the image's files; the caller gives it back with `release`.

        The first call for an image reads and writes all of its files. Raises InvalidRequest if a layer is missing or
        the image lies over the host's root; CapacityError, SubstrateUnavailable, SubstrateFailed, DeadlineExceeded.
        """
        for layer in image.layers:
            if not layer.startswith("sha256:") or not store.has(layer):
                raise InvalidRequest(f"there is no layer {layer}", hint="import or build its image")
        if image.over_host:
            hint = "build on another base"
            raise InvalidRequest("a machine cannot start from layers over the host's root", hint=hint)
        name = key(image.layers)
        own = self._own / f"{name}.squashfs"
        with self._lock:
            self._holders[own] += 1
        with on_failure(self.release, own), wrap_os_errors("the block image could not be made"):
            if not own.exists():
                with locks.waiting(self._directory / f"{name}.lock", _BUILD_TIMEOUT_S, "the block image's maker"):
                    self._link(store, image, name, own)
            os.utime(own)
        return own

    def hold_again(self, device: Path) -> None:
        """Add a holder to a device that is already held."""
        with self._lock:
            self._holders[device] += 1

    def release(self, device: Path) -> None:
        """Remove a holder. The last one to leave removes this process's link to the device."""
        with self._lock:
            self._holders[device] -= 1
            if self._holders[device] <= 0:
                del self._holders[device]
                device.unlink(missing_ok=True)

    def _link(self, store: Store, image: Image, name: str, own: Path) -> None:
        path = self._directory / own.name
        try:
            os.link(path, own)
        except FileExistsError:  # another thread made the link first
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
    with tempfile.TemporaryFile() as stderr:
        try:
            maker = subprocess.Popen(
                [*die_with_parent(), "sqfstar", *_FORMAT, str(draft)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip
        except OSError as error:
            raise SubstrateUnavailable(f"sqfstar: {error}", hint="Debian: apt-get install squashfs-tools") from error
        with maker, _killed_after(_BUILD_TIMEOUT_S, maker) as late:
            failure = _feed(maker, store, tree)
            code = maker.wait()
        stderr.seek(max(stderr.tell() - _STDERR_TAIL_BYTES, 0))
        message = stderr.read(_STDERR_TAIL_BYTES).decode("utf-8", "replace").strip()
    if late.is_set():
        raise DeadlineExceeded(f"the block image could not be made within {_BUILD_TIMEOUT_S:g} s")
    if code:
        full = "No space left" in message
        raise (CapacityError if full else SubstrateFailed)(f"the block image could not be made: {message}")
    if failure is not None:
        raise failure


def _feed(maker: subprocess.Popen[bytes], store: Store, tree: Path) -> DutyfreeError | None:
    """Pack the tree into the maker's standard input. Returns the error if packing failed.

    The error is returned, not raised: if the maker ended early, its standard error names the cause better.
    """
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
    """Kill the process after `timeout_s` and set the event: a blocking write to a pipe has no timeout of its own."""
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
    """When the file was last used; 0 if another process has removed it."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _trim(directory: Path) -> None:
    for path in sorted(directory.glob("*.squashfs"), key=last_used_ns)[:-_MAX_KEPT]:
        path.unlink(missing_ok=True)
