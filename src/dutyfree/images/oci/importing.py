"""Images from elsewhere into the store: OCI layouts, whatever skopeo can fetch, root tars and plain directories.

Of an image's config the environment and the working directory are kept. Its entrypoint, command and user say what a
container would run; a sandbox runs what it is told to, as root of its own world.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from dutyfree.archive.compression import decompressed
from dutyfree.archive.limits import DEFAULT_LIMITS, ArchiveLimits
from dutyfree.errors import ArchiveRefused, InvalidRequest
from dutyfree.images.files import open_regular
from dutyfree.images.oci import skopeo
from dutyfree.images.oci.blobs import Measured, OnBytes, buffered
from dutyfree.images.oci.layout import Layout, LayoutImage
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import Store
from dutyfree.images.trees.attributes import is_opaque
from dutyfree.images.trees.descent import Descent
from dutyfree.images.trees.disk import disk_errors
from dutyfree.images.trees.pack import pack
from dutyfree.images.trees.unpack import Unpacked, unpack
from dutyfree.model.image import Image

_IMAGE_FILES: Final = {"oci-layout", "manifest.json"}
_ROOT_DIRECTORIES: Final = {"bin", "etc", "usr"}


def import_layout(
    store: Store,
    layout: Path,
    reference: str | None = None,
    *,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    on_bytes: OnBytes | None = None,
) -> Image:
    """Import the image `reference`, or the only one, of an OCI layout. `limits` are for all of its layers together.

    A layer that the store has is neither read nor needed. All of the image's are held as after `Store.add`. `on_bytes`
    is told of the layers' bytes in the layout.
    Raises ArchiveRefused for an image that is broken or means harm, and InvalidRequest for one that is not there.
    """
    reader = Layout(layout)
    found = reader.image(reference)
    image = _described(found)
    distinct = {layer.diff_id: layer for layer in found.layers}
    with contextlib.ExitStack() as stack:
        new = [layer for layer in distinct.values() if not _holds(store, layer.diff_id, stack)]
        new_bytes = sum(layer.blob.size_bytes for layer in new)
        if new_bytes > _compressed_bytes(limits):
            raise ArchiveRefused(f"the layers have {new_bytes} bytes, but may have {limits.bytes} when unpacked")
        if on_bytes is not None:
            on_bytes(found.size_bytes - new_bytes)
        staging = stack.enter_context(store.staging())
        for layer in new:
            with reader.blob(layer.blob, on_bytes) as blob:
                digest, unpacked = _take(blob, staging / layer.diff_id, store.ownership, limits, on_bytes)
            if digest != layer.diff_id:
                hint = "the image's config belongs to other layers"
                raise ArchiveRefused(f"layer {layer.diff_id} has the content of {digest}", hint=hint)
            limits = replace(limits, bytes=limits.bytes - unpacked.bytes, entries=limits.entries - unpacked.entries)
        # Only now is all of the image known to be sound.
        for layer in new:
            store.add(staging / layer.diff_id, layer.diff_id, "oci")
        image = replace(image, layers=_visible(store, image.layers))
        store.keep(image.layers)
        return image


def import_source(
    store: Store,
    source: str,
    *,
    insecure: bool = False,
    timeout_s: float = skopeo.DEFAULT_TIMEOUT_S,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    on_bytes: OnBytes | None = None,
) -> Image:
    """Import what skopeo fetches from `source`: `docker://HOST/NAME:TAG`, `docker-daemon:NAME:TAG` and others.

    `on_bytes` is told of the bytes that come, and then of the bytes that are unpacked. Raises what `skopeo.fetch` and
    `import_layout` raise.
    """
    with store.staging() as staging:
        layout = staging / "layout"
        skopeo.fetch(
            source, layout, insecure=insecure, timeout_s=timeout_s, limit_bytes=limits.bytes, on_bytes=on_bytes
        )
        return import_layout(store, layout, limits=limits, on_bytes=on_bytes)


def import_tar(
    store: Store,
    source: Path | BinaryIO,
    *,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    on_bytes: OnBytes | None = None,
) -> Image:
    """Import a root file system from a tar, which may be compressed. `on_bytes` is told of the bytes of `source`.

    Raises ArchiveRefused for an archive that is broken or means harm, InvalidRequest for one that cannot be read.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(source, Path):
            try:
                source = stack.enter_context(open_regular(source))
            except OSError as error:
                raise InvalidRequest(f"cannot read {str(source)!r}: {error.strerror}") from error
        tree = stack.enter_context(store.staging()) / "tree"
        stream = buffered(Measured(source, limit_bytes=_compressed_bytes(limits), on_bytes=on_bytes))
        digest, _ = _take(stream, tree, store.ownership, limits, on_bytes)
        names = {path.name for path in tree.iterdir()}
        if names & _IMAGE_FILES and not names & _ROOT_DIRECTORIES:
            hint = "import it as oci-archive:PATH or docker-archive:PATH"
            raise ArchiveRefused("the tar holds images, not a root file system", hint=hint)
        store.add(tree, digest, "tar")
    return Image((digest,), over_host=False, cwd="/")


def import_directory(
    store: Store,
    source: Path,
    *,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    on_bytes: OnBytes | None = None,
) -> Image:
    """Import a directory as a root file system; for root its owners are kept, an ordinary user's store has none.

    `on_bytes` is told, by another thread, of the bytes of the directory's tar. Raises InvalidRequest for what cannot be
    in an image, SubstrateFailed for a directory that cannot be read.
    """
    if not source.is_dir():
        raise InvalidRequest(f"{str(source)!r} is not a directory")
    source = source.resolve()
    if store.root.resolve().is_relative_to(source):
        raise InvalidRequest(f"{str(source)!r} holds the image store itself", hint="import a directory without it")
    view = Ownership(None if store.ownership.shift is None else 0)
    with store.staging() as staging:
        tree = staging / "tree"
        reading, writing = os.pipe()
        # The stream is closed before the thread is waited for: it may be waiting for us to read.
        with ThreadPoolExecutor(1) as thread, open(reading, "rb") as stream:  # noqa: PTH123
            packing = thread.submit(_pack_into, writing, source, view, on_bytes)
            try:
                digest, _ = _take(stream, tree, store.ownership, limits, on_bytes)
            except ArchiveRefused:
                stream.close()
                _raise_failure(packing)
                raise
            _raise_failure(packing)
        store.add(tree, digest, "directory")
    return Image((digest,), over_host=False, cwd="/")


def _pack_into(pipe: int, source: Path, view: Ownership, on_bytes: OnBytes | None) -> None:
    with open(pipe, "wb") as sink:
        pack(source, sink, view, on_bytes)


def _raise_failure(packing: Future[None]) -> None:
    """Raise what stopped the packing, unless that was its reader."""
    error = packing.exception()
    if error is not None and not isinstance(error.__cause__ or error, BrokenPipeError):
        raise error


def _holds(store: Store, layer: str, stack: contextlib.ExitStack) -> bool:
    """Whether the store has the layer; if so, it stays until the end of `stack`."""
    try:
        hold = store.hold([layer])
    except InvalidRequest:
        return False
    if store.has(layer):
        stack.enter_context(hold)
        return True
    hold.release()  # damaged: what is held cannot be replaced
    return False


def _described(found: LayoutImage) -> Image:
    # Of a layer that comes twice the lower one has no effect that the upper one has not, and overlayfs wants each once.
    layers = tuple(reversed(dict.fromkeys(layer.diff_id for layer in reversed(found.layers))))
    try:
        return Image(layers, over_host=False, env=found.env, cwd=found.cwd)
    except InvalidRequest as error:
        raise ArchiveRefused(f"the config of the image is of no use: {error.message}") from error


def _visible(store: Store, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Without the layers below one that hides all of them, which overlay mounts do not know of a root."""
    for bottom in reversed(range(len(layers))):
        with disk_errors("cannot read the root of a layer"), Descent.at(store.tree(layers[bottom])) as root:
            if is_opaque(root.fd, store.ownership):
                return layers[bottom:]
    return layers


def _compressed_bytes(limits: ArchiveLimits) -> int:
    """How much there can be to read of what may have `limits.bytes` when unpacked: noise grows when it is packed."""
    return limits.bytes + limits.bytes // 32 + 1024 * 1024


def _take(
    stream: BinaryIO, tree: Path, ownership: Ownership, limits: ArchiveLimits, on_bytes: OnBytes | None
) -> tuple[str, Unpacked]:
    """Unpack a tar, which may be compressed, into a new directory; also returns the uncompressed tar's digest.

    `on_bytes` hears of none of its bytes, but often, so that whoever wants to stop it can.
    """
    tree.mkdir(mode=0o755)
    tar = Measured(decompressed(stream, limits.bytes))
    beat = None if on_bytes is None else lambda _: on_bytes(0)
    unpacked = unpack(buffered(tar), tree, ownership, limits, beat)
    tar.drain()
    return tar.digest, unpacked
