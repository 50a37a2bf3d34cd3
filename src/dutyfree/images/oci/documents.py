"""Parses the JSON documents of OCI images, which are untrusted: documents that are large or malformed are refused."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import dataclass
from typing import Final

from dutyfree.errors import ArchiveRefused

MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
NAME_ANNOTATION: Final = "org.opencontainers.image.ref.name"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
GZIP_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX_TYPES: Final = frozenset({INDEX_TYPE, "application/vnd.docker.distribution.manifest.list.v2+json"})
MANIFEST_TYPES: Final = frozenset({MANIFEST_TYPE, "application/vnd.docker.distribution.manifest.v2+json"})
CONFIG_TYPES: Final = frozenset({CONFIG_TYPE, "application/vnd.docker.container.image.v1+json"})
LAYER_TYPES: Final = frozenset(
    {
        GZIP_LAYER_TYPE,
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.image.rootfs.diff.tar",
    }
)
_ZSTD_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_QUOTED_CHARACTERS: Final = 100


def architecture() -> str:
    """This machine's architecture, by its OCI name."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


@dataclass(frozen=True, slots=True)
class Platform:
    """The platform of an image; empty strings if the image does not name it."""

    os: str
    architecture: str

    def suits_this_machine(self) -> bool:
        return self.os in ("", "linux") and self.architecture in ("", architecture())

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A reference to a blob: its media type, digest and size."""

    media_type: str
    digest: str
    size_bytes: int
    platform: Platform | None = None
    name: str | None = None


def parse(data: bytes, what: str) -> dict[str, object]:
    """The JSON object in `data`. Raises ArchiveRefused if it is not one."""
    try:
        return as_object(json.loads(data), what)
    except (ValueError, RecursionError) as error:
        raise ArchiveRefused(f"{what} is not JSON") from error


def as_object(value: object, what: str) -> dict[str, object]:
    """`value`, if it is a JSON object. Raises ArchiveRefused."""
    if not isinstance(value, dict):
        raise ArchiveRefused(f"{what} is not a JSON object")
    return value


def as_list(value: object, what: str) -> list[object]:
    """`value`, if it is a JSON list. Raises ArchiveRefused."""
    if not isinstance(value, list):
        raise ArchiveRefused(f"{what} is not a list")
    return value


def as_text(value: object, what: str) -> str:
    """`value`, if it is a string that can be encoded as UTF-8. Raises ArchiveRefused."""
    # JSON can contain lone surrogates, which cannot be encoded.
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        raise ArchiveRefused(f"{what} is not text")
    return value


def as_digest(value: object, what: str) -> str:
    """`value`, if it is a sha256 digest, which is also a safe file name. Raises ArchiveRefused."""
    digest = as_text(value, what)
    if not _DIGEST.fullmatch(digest):
        raise ArchiveRefused(f"{what} has the digest {quoted(digest)}", hint="only sha256 is supported")
    return digest


def as_descriptor(value: object, what: str) -> Descriptor:
    """`value`, if it describes a blob. Raises ArchiveRefused."""
    fields = as_object(value, what)
    size_bytes = fields.get("size")
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
        raise ArchiveRefused(f"{what} has no size")
    annotations = as_object(fields.get("annotations") or {}, f"the annotations of {what}")
    name = annotations.get(NAME_ANNOTATION)
    return Descriptor(
        media_type=as_text(fields.get("mediaType", ""), f"the media type of {what}"),
        digest=as_digest(fields.get("digest"), what),
        size_bytes=size_bytes,
        platform=as_platform(fields["platform"], what) if fields.get("platform") is not None else None,
        name=as_text(name, f"the name of {what}") if name is not None else None,
    )


def as_platform(value: object, what: str) -> Platform:
    """The platform in `value`; other fields are ignored. Raises ArchiveRefused."""
    fields = as_object(value, f"the platform of {what}")
    system, machine = fields.get("os", ""), fields.get("architecture", "")
    return Platform(as_text(system, f"the os of {what}"), as_text(machine, f"the architecture of {what}"))


def check_type(fields: dict[str, object], expected: str, what: str) -> None:
    """Raise ArchiveRefused if a document's type differs from its descriptor, or if it has two types.

    Otherwise programs that read different fields would see different images for one digest.
    """
    if fields.get("mediaType") not in (None, expected):
        raise ArchiveRefused(f"{what} does not have the media type that its descriptor names")
    if "manifests" in fields and ("layers" in fields or "config" in fields):
        raise ArchiveRefused(f"{what} is both an index and a manifest")


def check_layer_type(layer: Descriptor) -> None:
    """Raise ArchiveRefused unless our unpacker supports the layer's media type."""
    if layer.media_type in LAYER_TYPES:
        return
    zstd = "convert it to gzip: skopeo copy --dest-compress-format gzip"
    hint = zstd if layer.media_type == _ZSTD_LAYER_TYPE else "only tar layers, plain or gzip, can be unpacked"
    raise ArchiveRefused(f"a layer has the media type {quoted(layer.media_type)}", hint=hint)


def quoted(text: str) -> str:
    """Untrusted text, shortened and escaped for a message."""
    return repr(text[:_QUOTED_CHARACTERS])
