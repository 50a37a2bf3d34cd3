"""The sources that an image can be imported from, and how they are recognised."""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from dutyfree.archive.compression import decompressed
from dutyfree.archive.limits import DEFAULT_LIMITS
from dutyfree.archive.reading import BLOCK_BYTES, TarReader
from dutyfree.errors import ArchiveRefused, InvalidRequest
from dutyfree.images.files import open_regular
from dutyfree.images.oci.blobs import OnBytes
from dutyfree.images.oci.importing import import_directory, import_layout, import_source, import_tar
from dutyfree.images.oci.layout import Layout
from dutyfree.images.store import Store
from dutyfree.images.trees.disk import disk_errors
from dutyfree.model import Image

_ELSEWHERE: Final = ("docker://", "docker-daemon:")
_ARCHIVED: Final = ("docker-archive:", "oci-archive:")
_FETCHED_AS_BASES: Final = tuple(f"oci:{transport}" for transport in (*_ELSEWHERE, *_ARCHIVED))
"""The form that recipes use."""
_PIECE_BYTES: Final = 1024 * 1024
_FORMS: Final = "give a path, docker://HOST/NAME:TAG, docker-daemon:NAME:TAG, or dir:, tar: or oci: and a path"
_ARCHIVES: Final = {b"oci-layout": "oci-archive:", b"manifest.json": "docker-archive:"}
"""The files that only one kind of archive has; an archive with both can be read as either kind."""
_IN_AN_ARCHIVE: Final = re.compile(
    rb"blobs(/.*)?|index\.json|oci-layout|manifest\.json|repositories|[0-9a-f]{64}(\.json|\.tar|/.*)?", re.DOTALL
)
_TAR_SUFFIXES: Final = re.compile(r"(\.oci|\.docker)?(\.tar(\.[a-z0-9]+)?|\.t[gbx]z2?)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """An image to import."""

    name: str
    """The default name of the image; not every source has a name that is valid for an image."""
    take: Callable[[Store, OnBytes], Image]
    """Put it into the store. Raises as the functions of `images.oci.importing` do."""
    total_bytes: int | None = None
    """How many bytes `take` will report, if known."""


def find(text: str, *, insecure: bool = False, on_bytes: OnBytes | None = None) -> Source:
    """The source that `text` names. An archive may be read to recognise its kind; `on_bytes` gets the progress.

    Raises InvalidRequest if it does not exist, ArchiveRefused if it is broken.
    """
    text = text.removeprefix("oci:") if text.startswith(_FETCHED_AS_BASES) else text
    if text.startswith(_ELSEWHERE):
        return _fetched(text, insecure)
    kind, rest = _split(text, on_bytes)
    match kind:
        case "dir:":
            return Source(
                _file_name(Path(rest)), lambda store, on_bytes: import_directory(store, Path(rest), on_bytes=on_bytes)
            )
        case "tar:":
            return _tar(Path(rest))
        case "oci:":
            return _layout(rest)
    return _archived(kind, rest)


def _split(text: str, on_bytes: OnBytes | None) -> tuple[str, str]:
    """The kind, with its colon, and the path. The kind of a plain path is detected."""
    for kind in ("dir:", "tar:", "oci:", *_ARCHIVED):
        if text.startswith(kind):
            return kind, text.removeprefix(kind)
    return _detected(text, on_bytes), text


def _detected(text: str, on_bytes: OnBytes | None) -> str:
    path = Path(text)
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return _kind_of_archive(path, on_bytes)
        return "oci:" if (path / "oci-layout").is_file() else "dir:"
    except OSError as error:
        is_made = text == "host" or text.startswith("debian:")
        hint = "it is a recipe's base: build a recipe that has it" if is_made else _FORMS
        raise InvalidRequest(f"cannot import {text!r}: {error.strerror}", hint=hint) from error


def _kind_of_archive(path: Path, on_bytes: OnBytes | None) -> str:
    """`tar:` for a root file system; otherwise skopeo's name for the kind of archive."""
    try:
        with open_regular(path) as file:
            for entry in TarReader(decompressed(file, DEFAULT_LIMITS.bytes), DEFAULT_LIMITS, on_bytes):
                name = entry.name.removeprefix(b"./").rstrip(b"/")
                if name in _ARCHIVES:
                    return _ARCHIVES[name]
                if name not in (b"", b".") and not _IN_AN_ARCHIVE.fullmatch(name):
                    return "tar:"
    except ArchiveRefused as error:
        raise ArchiveRefused(f"cannot import {str(path)!r}: {error.message}", hint=error.hint) from error
    except InvalidRequest as error:
        raise InvalidRequest(f"cannot import {error.message}", hint=_FORMS) from error
    return "tar:"


def _tar(path: Path) -> Source:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(path)!r}: {error.strerror}") from error
    return Source(_file_name(path), lambda store, on_bytes: import_tar(store, path, on_bytes=on_bytes), size_bytes)


def _layout(address: str) -> Source:
    path, reference = _addressed(address)
    found = Layout(path).image(reference)
    return Source(
        _file_name(path),
        lambda store, on_bytes: import_layout(store, path, found.digest, on_bytes=on_bytes),
        found.size_bytes,
    )


def _addressed(address: str) -> tuple[Path, str | None]:
    """`PATH`, or `PATH:NAME` where there are several images; both may have colons of their own."""
    parts = address.split(":")
    for count in range(len(parts), 0, -1):
        path = Path(":".join(parts[:count]))
        with contextlib.suppress(OSError):  # opening it raises the error that the user sees
            path.stat()
            return path, ":".join(parts[count:]) or None
    return Path(address), None


def _fetched(address: str, insecure: bool) -> Source:
    name = address.partition(":")[2].removeprefix("//").partition("@")[0]
    return Source(name, lambda store, on_bytes: import_source(store, address, insecure=insecure, on_bytes=on_bytes))


def _archived(transport: str, address: str) -> Source:
    path, reference = _addressed(address)

    def take(store: Store, on_bytes: OnBytes) -> Image:
        with store.staging() as directory:
            plain = _plain(path, directory / "archive.tar", on_bytes)
            named = f"{plain}:{reference}" if reference else str(plain)
            return import_source(store, f"{transport}{named}", on_bytes=on_bytes)

    return Source(_file_name(path), take)


def _plain(path: Path, other: Path, on_bytes: OnBytes) -> Path:
    """The archive itself, or `other`: not compressed, at a path without colons.

    Not every reader of archives can decompress them, and skopeo takes what follows a colon for an image's name.
    """
    try:
        with open_regular(path) as file:
            start = file.read(BLOCK_BYTES)
            file.seek(0)
            content = decompressed(file, DEFAULT_LIMITS.bytes)
            first = content.read(BLOCK_BYTES)
            if first != start:
                _copy(first, content, other, on_bytes)
                return other
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(path)!r}: {error.strerror}") from error
    if ":" not in str(path):
        return path
    other.symlink_to(path.absolute())
    return other


def _copy(first: bytes, content: BinaryIO, target: Path, on_bytes: OnBytes) -> None:
    with disk_errors("cannot decompress the archive"), target.open("wb") as out:
        piece = first
        while piece:
            out.write(piece)
            on_bytes(len(piece))
            piece = content.read(_PIECE_BYTES)


def _file_name(path: Path) -> str:
    return _TAR_SUFFIXES.sub("", path.absolute().name).lower()
