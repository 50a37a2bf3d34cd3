"""Imports images into the store from OCI layouts, sources that skopeo can fetch, root tars and plain directories.

The import keeps the environment and the working directory of an image's config, which hold in every sandbox. It also
keeps user, entrypoint and command, which hold where a caller asks for them: otherwise a sandbox runs the caller's
commands, as root of its own user namespace.
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
from dutyfree.images.oci.blobs import HashingReader, OnBytes, buffered
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
    """Import the image `reference`, or the only one, of an OCI layout. `limits` apply to all layers together.

    Layers that the store has are not read and may be missing in the layout. All layers are held as after `Store.add`.
    `on_bytes` gets the number of bytes of the layers in the layout.
    Raises ArchiveRefused for an image that is broken or malicious, and InvalidRequest for one that is missing.
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
        # The store gets the layers only now, when the whole image is verified.
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
    """Import the image that skopeo fetches from `source`, such as `docker://HOST/NAME:TAG` or `docker-daemon:NAME:TAG`.

    `on_bytes` gets the number of fetched bytes, and then of unpacked bytes. Raises what `skopeo.fetch` and
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
    """Import a root file system from a tar, which may be compressed. `on_bytes` gets the number of bytes of `source`.

    Raises ArchiveRefused for an archive that is broken or malicious, InvalidRequest for one that cannot be read.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(source, Path):
            try:
                source = stack.enter_context(open_regular(source))
            except OSError as error:
                raise InvalidRequest(f"cannot read {str(source)!r}: {error.strerror}") from error
        tree = stack.enter_context(store.staging()) / "tree"
        stream = buffered(HashingReader(source, limit_bytes=_compressed_bytes(limits), on_bytes=on_bytes))
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
    """Import a directory as a root file system; root's store keeps the owners, an ordinary user's store does not.

    `on_bytes` gets the number of bytes of the directory's tar, in another thread. Raises InvalidRequest for files that
    an image cannot have, SubstrateFailed for a directory that cannot be read.
    """
    if not source.is_dir():
        raise InvalidRequest(f"{str(source)!r} is not a directory")
    source = source.resolve()
    if store.root.resolve().is_relative_to(source):
        raise InvalidRequest(f"{str(source)!r} contains the image store", hint="import a directory without it")
    view = Ownership(None if store.ownership.shift is None else 0)
    with store.staging() as staging:
        tree = staging / "tree"
        reading, writing = os.pipe()
        # Closes the stream before it waits for the thread: the thread may block until this side reads.
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
    """Raise the error that stopped the packing, unless the reader closed the pipe."""
    error = packing.exception()
    if error is not None and not isinstance(error.__cause__ or error, BrokenPipeError):
        raise error


def _holds(store: Store, layer: str, stack: contextlib.ExitStack) -> bool:
    """Whether the store has the layer; if so, it is held until the end of `stack`."""
    try:
        hold = store.hold([layer])
    except InvalidRequest:
        return False
    if store.has(layer):
        stack.enter_context(hold)
        return True
    hold.release()  # the layer is damaged, and a held layer cannot be replaced
    return False


def _described(found: LayoutImage) -> Image:
    # If a layer occurs twice, the lower one has no effect, and overlayfs accepts each layer only once.
    layers = tuple(reversed(dict.fromkeys(layer.diff_id for layer in reversed(found.layers))))
    try:
        return Image(
            layers,
            over_host=False,
            env=found.env,
            cwd=found.cwd,
            user=found.user,
            entrypoint=found.entrypoint,
            command=found.command,
        )
    except InvalidRequest as error:
        raise ArchiveRefused(f"the config of the image is invalid: {error.message}") from error


def _visible(store: Store, layers: tuple[str, ...]) -> tuple[str, ...]:
    """The layers without those below an opaque root: overlay mounts ignore the opaque mark of a root directory."""
    for bottom in reversed(range(len(layers))):
        with disk_errors("cannot read the root of a layer"), Descent.at(store.tree(layers[bottom])) as root:
            if is_opaque(root.fd, store.ownership):
                return layers[bottom:]
    return layers


def _compressed_bytes(limits: ArchiveLimits) -> int:
    """The largest compressed size of `limits.bytes` bytes: random data grows when it is compressed."""
    return limits.bytes + limits.bytes // 32 + 1024 * 1024


def _take(
    stream: BinaryIO, tree: Path, ownership: Ownership, limits: ArchiveLimits, on_bytes: OnBytes | None
) -> tuple[str, Unpacked]:
    """Unpack a tar, which may be compressed, into a new directory; also returns the uncompressed tar's digest.

    `on_bytes` is called often, with 0 bytes, so that it can raise to stop the work.
    """
    tree.mkdir(mode=0o755)
    tar = HashingReader(decompressed(stream, limits.bytes))
    beat = None if on_bytes is None else lambda _: on_bytes(0)
    unpacked = unpack(buffered(tar), tree, ownership, limits, beat)
    tar.drain()
    return tar.digest, unpacked
