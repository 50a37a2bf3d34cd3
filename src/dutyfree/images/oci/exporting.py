"""Exports images from the store in a form that Docker, Podman, skopeo and Dutyfree read.

It is an OCI layout with an additional Docker `manifest.json`: new programs read the layout, old ones the manifest.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest, Unsupported
from dutyfree.images.oci import documents
from dutyfree.images.oci.blobs import OnBytes
from dutyfree.images.oci.writers import HashedSink, ImageWriter, image_writer
from dutyfree.images.store import Store
from dutyfree.images.trees.pack import pack
from dutyfree.model.image import DEFAULT_COMMAND, Image

# gzip level 1 takes a fifth of the default level's time for a tenth more bytes. Speed matters more, since an exported
# image is usually loaded soon.
_LEVEL: Final = 1
_EPOCH: Final = "1970-01-01T00:00:00Z"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME: Final = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
)
_MAX_NAME_CHARACTERS: Final = 255


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported image."""

    path: Path
    name: str
    """The name with its tag: Docker's name for the image after loading it."""
    digest: str
    """The manifest's digest."""
    layers: tuple[str, ...]
    """The digests of the layers' tars; for imported layers they may differ from the imported digests."""


def export_image(
    store: Store, image: Image, target: Path, name: str, *, overwrite: bool = False, on_bytes: OnBytes | None = None
) -> Exported:
    """Write an image: as one tar if `target` ends in `.tar`, otherwise as a directory. The export is atomic.

    The same image and name give the same bytes. `on_bytes` gets the number of bytes of the files. Raises Unsupported
    for an image over the host's root, InvalidRequest for a target that exists (unless `overwrite`) or cannot be
    written, CapacityError for a full disk.
    """
    if image.over_host:
        hint = "build it from another base: dir:, tar:, oci: or debian:"
        raise Unsupported("an image over the host's root cannot be exported: its base is not in the store", hint=hint)
    if not image.is_stored:
        raise InvalidRequest("an image with live layers cannot be exported", hint="save the snapshot first")
    tagged = _tagged(name)
    _check_target(target, overwrite)
    try:
        # A sibling is on the same disk, so that one rename puts the whole into place.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as name_of_scratch:
            scratch = Path(name_of_scratch)
            draft = scratch / "image"
            with store.hold(image.layers), image_writer(draft, as_tar=target.suffix == ".tar") as writer:
                digest, diff_ids = _write(store, image, tagged, writer, scratch, on_bytes)
            put_into_place(draft, target, scratch / "replaced")
    except OSError as error:
        raise _unwritable(target, error) from error
    return Exported(target, tagged, digest, diff_ids)


def put_into_place(draft: Path, target: Path, aside: Path) -> None:
    """Rename `draft` to `target`; a directory that was there is `aside` afterwards, a file is gone.

    Raises OSError, and leaves all as it was then.
    """
    if not target.is_dir():
        draft.rename(target)
        return
    # A rename does not replace a directory that has something in it.
    target.rename(aside)
    try:
        draft.rename(target)
    except BaseException:
        aside.rename(target)
        raise


def _write(
    store: Store, image: Image, name: str, writer: ImageWriter, scratch: Path, on_bytes: OnBytes | None
) -> tuple[str, tuple[str, ...]]:
    """Write all files of the image. Returns the digests of its manifest and of its layers' tars."""
    packed = scratch / "layer"
    layers: list[documents.Descriptor] = []
    diff_ids: list[str] = []
    for layer in image.layers:
        diff_id, blob = _pack_layer(store, layer, packed, on_bytes)
        writer.move(_blob_path(blob.digest), packed)
        layers.append(blob)
        diff_ids.append(diff_id)
    config = _put(writer, documents.CONFIG_TYPE, _config(image, diff_ids))
    about = {"schemaVersion": 2, "mediaType": documents.MANIFEST_TYPE}
    lists = {"config": _described(config), "layers": [_described(layer) for layer in layers]}
    manifest = _put(writer, documents.MANIFEST_TYPE, {**about, **lists})
    names = {documents.NAME_ANNOTATION: name, "io.containerd.image.name": _qualified(name)}
    platform = {"architecture": documents.architecture(), "os": "linux"}
    entry = {**_described(manifest), "annotations": names, "platform": platform}
    index = {"schemaVersion": 2, "mediaType": documents.INDEX_TYPE, "manifests": [entry]}
    paths = [_blob_path(layer.digest) for layer in layers]
    writer.put("manifest.json", _json([{"Config": _blob_path(config.digest), "RepoTags": [name], "Layers": paths}]))
    writer.put("index.json", _json(index))
    writer.put("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    return manifest.digest, tuple(diff_ids)


def _pack_layer(store: Store, layer: str, path: Path, on_bytes: OnBytes | None) -> tuple[str, documents.Descriptor]:
    with path.open("wb") as file:
        sink = HashedSink(file)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=sink, mtime=0) as compressed:
            diff_id = pack(store.tree(layer), cast("BinaryIO", compressed), store.ownership, on_bytes)
    return diff_id, documents.Descriptor(documents.GZIP_LAYER_TYPE, sink.digest, sink.count_bytes)


def _config(image: Image, diff_ids: list[str]) -> dict[str, object]:
    env = [f"{name}={value}" for name, value in sorted(image.env.items())]
    process: dict[str, object] = {"Env": env, "WorkingDir": image.cwd}
    if image.user:
        process["User"] = image.user
    if image.entrypoint:
        process["Entrypoint"] = list(image.entrypoint)
    if image.command or not image.entrypoint:
        process["Cmd"] = list(image.command or DEFAULT_COMMAND)
    return {
        "created": _EPOCH,
        "architecture": documents.architecture(),
        "os": "linux",
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [{"created": _EPOCH, "created_by": "dutyfree"} for _ in diff_ids],
    }


def _put(writer: ImageWriter, media_type: str, document: object) -> documents.Descriptor:
    data = _json(document)
    blob = documents.Descriptor(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    writer.put(_blob_path(blob.digest), data)
    return blob


def _described(blob: documents.Descriptor) -> dict[str, object]:
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size_bytes}


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _tagged(name: str) -> str:
    if len(name) > _MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} cannot name an image", hint="for example team/app:1.0, in lower case")
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _qualified(name: str) -> str:
    """The name with the registry and namespace that Docker omits when it shows one."""
    host, slash, _rest = name.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _check_target(target: Path, overwrite: bool) -> None:
    """Raise InvalidRequest unless an image may be written there: only an image is ever overwritten."""
    if not target.name or not os.path.lexists(target):
        return
    if not overwrite:
        raise InvalidRequest(f"{str(target)!r} already exists", hint="choose another path, or overwrite it")
    as_tar = target.suffix == ".tar"
    if target.is_symlink() or not (target.is_file() if as_tar else (target / "oci-layout").is_file()):
        raise InvalidRequest(f"{str(target)!r} is not an image, so it is not overwritten", hint="choose another path")


def _unwritable(target: Path, error: OSError) -> DutyfreeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(
            f"the disk is full: cannot write {str(target)!r}", hint="free some space, or choose another path"
        )
    return InvalidRequest(f"cannot write {str(target)!r}: {error.strerror or error}", hint="choose another path")
