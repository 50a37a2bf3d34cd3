"""Reads an OCI image layout: the index, then the manifest for this machine, then its config and layers.

The layout is untrusted: each document must be small, well-formed and match the digest that refers to it, and each file
name comes from a digest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from dutyfree.errors import ArchiveRefused, InvalidRequest
from dutyfree.images.oci import blobs, documents
from dutyfree.images.oci.documents import Descriptor
from dutyfree.model.image import DEFAULT_COMMAND, MAX_LAYERS

MAX_DOCUMENTS: Final = 256
MAX_DEPTH: Final = 4
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class LayoutLayer:
    """A layer: its blob, and the digest of the uncompressed tar."""

    blob: Descriptor
    diff_id: str


@dataclass(frozen=True, slots=True)
class LayoutImage:
    """One image of a layout, from its manifest and its config."""

    digest: str
    """The manifest's digest."""
    layers: tuple[LayoutLayer, ...]
    """Bottom first."""
    env: Mapping[str, str]
    cwd: str
    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all layers as they are in the layout, usually compressed."""
        return sum(layer.blob.size_bytes for layer in self.layers)


class Layout:
    """A directory in the OCI image layout. All methods raise ArchiveRefused for broken files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._documents_left = MAX_DOCUMENTS
        self._unsuitable: set[str] = set()

    def image(self, reference: str | None = None) -> LayoutImage:
        """The image for this machine with the name or manifest digest `reference`; with None the only image.

        Raises InvalidRequest if the layout has no such image, or several.
        """
        self._documents_left = MAX_DOCUMENTS
        self._unsuitable = set()
        self._check_version()
        top = self._index(self._file("index.json"), documents.INDEX_TYPE, "index.json")
        wanted = [entry for entry in top if reference is None or reference in (entry.name, entry.digest)]
        found: dict[str, LayoutImage] = {}
        for entry in wanted or top:
            image = self._for_this_machine(entry, MAX_DEPTH)
            # The digest may also name a manifest that only a nested index refers to.
            if image is not None and (wanted or image.digest == reference):
                found[image.digest] = image
            if len(found) > 1:
                raise InvalidRequest("the layout has several images", hint=f"name one of {_names(top)}")
        if not wanted and not found:
            raise InvalidRequest(f"the layout has no image {reference!r}", hint=f"it has {_names(top)}")
        for image in found.values():
            return image
        hint = f"it has {_listed(sorted(self._unsuitable))}" if self._unsuitable else None
        raise ArchiveRefused(f"the layout has no image for linux/{documents.architecture()}", hint=hint)

    def blob(
        self, descriptor: Descriptor, on_bytes: blobs.OnBytes | None = None
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a blob; leaving the block raises ArchiveRefused unless size and digest match `descriptor`."""
        path = self._directory.joinpath("blobs", *descriptor.digest.split(":"))
        return blobs.opened_blob(path, descriptor.digest, descriptor.size_bytes, on_bytes)

    def _check_version(self) -> None:
        version = documents.parse(self._file("oci-layout"), "oci-layout").get("imageLayoutVersion")
        if not documents.as_text(version, "the layout's version").startswith("1."):
            raise ArchiveRefused(f"the layout has version {documents.quoted(str(version))}, not 1")

    def _file(self, name: str) -> bytes:
        try:
            with blobs.opened_file(self._directory / name) as file:
                data = file.read(documents.MAX_DOCUMENT_BYTES + 1)
        except ArchiveRefused as error:
            hint = "an OCI layout is a directory with oci-layout, index.json and blobs in it"
            raise ArchiveRefused(
                f"{str(self._directory)!r} is not an OCI layout: {error.message}", hint=hint
            ) from error
        if len(data) > documents.MAX_DOCUMENT_BYTES:
            raise _too_big(name)
        return data

    def _document(self, descriptor: Descriptor, what: str) -> bytes:
        if descriptor.size_bytes > documents.MAX_DOCUMENT_BYTES:
            raise _too_big(what)
        self._documents_left -= 1
        if self._documents_left < 0:
            raise ArchiveRefused(f"the layout has more than {MAX_DOCUMENTS} documents", hint="name the image")
        with self.blob(descriptor) as stream:
            return stream.read()

    def _index(self, data: bytes, media_type: str, what: str) -> list[Descriptor]:
        fields = documents.parse(data, what)
        documents.check_type(fields, media_type, what)
        entries = documents.as_list(fields.get("manifests"), f"the list of manifests in {what}")
        return [documents.as_descriptor(entry, f"a manifest in {what}") for entry in entries]

    def _for_this_machine(self, entry: Descriptor, depth: int) -> LayoutImage | None:
        """The first image of `entry` that runs on this machine; others are remembered for the error message."""
        if entry.platform is not None and not entry.platform.suits_this_machine():
            self._remember_unsuitable(str(entry.platform))
            return None
        if entry.media_type in documents.MANIFEST_TYPES:
            return self._manifest(entry)
        if entry.media_type not in documents.INDEX_TYPES:
            self._remember_unsuitable(f"media type {entry.media_type}")
            return None
        if depth == 0:
            raise ArchiveRefused(f"the layout nests indexes more than {MAX_DEPTH} levels deep")
        for inner in self._index(self._document(entry, "an index"), entry.media_type, "an index"):
            image = self._for_this_machine(inner, depth - 1)
            if image is not None:
                return image
        return None

    def _manifest(self, entry: Descriptor) -> LayoutImage | None:
        fields = documents.parse(self._document(entry, "a manifest"), "a manifest")
        documents.check_type(fields, entry.media_type, "a manifest")
        config = documents.as_descriptor(fields.get("config"), "the config")
        if config.media_type not in documents.CONFIG_TYPES:
            self._remember_unsuitable(f"media type {config.media_type}")
            return None
        settings = documents.parse(self._document(config, "the config"), "the config")
        suited = documents.as_platform(settings, "the config")
        if not suited.suits_this_machine():
            self._remember_unsuitable(str(suited))
            return None
        layers = documents.as_list(fields.get("layers"), "the list of layers")
        return _read_image(entry.digest, layers, settings)

    def _remember_unsuitable(self, what: str) -> None:
        if len(self._unsuitable) < _LISTED:
            self._unsuitable.add(what)


def _read_image(digest: str, layers: list[object], settings: dict[str, object]) -> LayoutImage:
    diff_ids = documents.as_list(
        documents.as_object(settings.get("rootfs"), "rootfs").get("diff_ids"), "the list of diff_ids"
    )
    if len(layers) != len(diff_ids):
        raise ArchiveRefused(f"the manifest has {len(layers)} layers, but the config {len(diff_ids)}")
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise ArchiveRefused(f"an image must have 1 to {MAX_LAYERS} layers, not {len(layers)}")
    pairs: list[LayoutLayer] = []
    for layer, diff_id in zip(layers, diff_ids, strict=True):
        blob = documents.as_descriptor(layer, "a layer")
        documents.check_layer_type(blob)
        pairs.append(LayoutLayer(blob, documents.as_digest(diff_id, "a diff_id")))
    process = documents.as_object(settings.get("config") or {}, "the config's own config")
    cwd = documents.as_text(process.get("WorkingDir") or "/", "WorkingDir")
    entrypoint, command = (_read_words(process.get(name), name) for name in ("Entrypoint", "Cmd"))
    return LayoutImage(
        digest,
        tuple(pairs),
        _read_env(process.get("Env") or []),
        cwd,
        documents.as_text(process.get("User") or "", "User"),
        entrypoint,
        # An image without a command is exported with this one, and comes back as it was.
        () if not entrypoint and command == DEFAULT_COMMAND else command,
    )


def _read_words(value: object, what: str) -> tuple[str, ...]:
    return tuple(documents.as_text(each, f"a word of {what}") for each in documents.as_list(value or [], what))


def _read_env(value: object) -> dict[str, str]:
    env: dict[str, str] = {}
    for entry in documents.as_list(value, "Env"):
        name, separator, content = documents.as_text(entry, "an entry of Env").partition("=")
        if not separator:
            raise ArchiveRefused(f"the entry {documents.quoted(name)} of Env has no value")
        env[name] = content
    return env


def _too_big(what: str) -> ArchiveRefused:
    return ArchiveRefused(f"{what} has more than {documents.MAX_DOCUMENT_BYTES} bytes")


def _names(entries: list[Descriptor]) -> str:
    return _listed(sorted({entry.name or entry.digest for entry in entries}))


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    shown = ", ".join(documents.quoted(name) for name in names[:_LISTED])
    return f"{shown} and {len(names) - _LISTED} more" if len(names) > _LISTED else shown
