"""Names of images."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from pathlib import Path

from dutyfree.errors import ImageNotFound, InvalidRequest
from dutyfree.images.store import documents
from dutyfree.model.image import Image
from dutyfree.publish import sync_directory
from dutyfree.values import dataclass

MAX_SOURCE_CHARACTERS = 1000
MIN_PREFIX_DIGITS = 6
_NAME = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,127}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?")
"""With the tag, in upper case as well, and the digest that a registry's name for an image can have."""
MAX_NAME_CHARACTERS = 200
_PREFIX = re.compile(rf"(?:sha256:)?([0-9a-f]{{{MIN_PREFIX_DIGITS},64}})")
_SUFFIX = ".json"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image in the store, and its name."""

    name: str | None
    """None for an image that is only in the cache of stages."""
    image: Image
    created_s: float
    """Unix time at which the image got the name."""
    source: str = ""
    """A description of the image's origin, for people."""

    @property
    def digest(self) -> str:
        return self.image.digest


def check_name(name: str) -> None:
    """Raise InvalidRequest for an invalid name."""
    if not _is_name(name):
        hint = "use lower-case letters, digits, and . _ / : - between them, at most 128 characters; a tag may follow"
        raise InvalidRequest(f"{name!r} cannot name an image", hint=hint)


class Names:
    """The directory of names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, named: NamedImage, draft: Path) -> None:
        """Set the image of a name. The caller must hold the store's lock."""
        assert named.name is not None
        data = {"image": named.image.as_dict(), "created_s": named.created_s, "source": named.source}
        documents.publish_document({"name": named.name, **data}, self._path(named.name), draft)

    def remove(self, name: str) -> bool:
        """Remove a name, even a damaged one; returns whether it existed."""
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        sync_directory(self._directory)
        return True

    def get(self, name: str) -> NamedImage | None:
        """The image of a name; None for an unknown name. Raises InvalidRequest if its entry is damaged."""
        try:
            return _parsed(documents.read(self._path(name)), name)
        except FileNotFoundError:
            return None
        except (documents.Broken, InvalidRequest) as error:
            hint = f"`dutyfree image remove {name}` removes it; then build or import it again"
            raise InvalidRequest(f"the entry of image {name!r} is damaged: {error}", hint=hint) from error

    def all(self) -> tuple[list[NamedImage], list[InvalidRequest]]:
        """The readable images, sorted by name, and the errors of the damaged ones."""
        images, problems = [], []
        for name in self.written():
            try:
                named = self.get(name)
            except InvalidRequest as error:
                problems.append(error)
            else:
                images += [named] if named is not None else []
        return images, problems

    def written(self) -> list[str]:
        """All names, including damaged ones."""
        return sorted(_name_of(path) for path in self._directory.iterdir() if is_name_file(path))

    def _path(self, name: str) -> Path:
        # Names have no '%' and do not start with '.', so different names have different files, all in this directory.
        check_name(name)
        return self._directory / (name.replace("/", "%") + _SUFFIX)


def is_name_file(path: Path) -> bool:
    """Whether a path has the form of a name's file."""
    return path.suffix == _SUFFIX and _is_name(_name_of(path))


def by_digest(wanted: str, images: Iterable[NamedImage]) -> NamedImage | None:
    """The image whose digest is `wanted` or starts with it; None if none does. Raises InvalidRequest for several."""
    prefix = _PREFIX.fullmatch(wanted)
    if prefix is None:
        return None
    found: dict[str, NamedImage] = {}
    for each in images:
        if each.digest.startswith(f"sha256:{prefix[1]}"):
            found.setdefault(each.digest, each)
    if len(found) > 1:
        several = ", ".join(f"{each.name or 'unnamed'} ({digest[:23]})" for digest, each in found.items())
        raise InvalidRequest(f"{wanted!r} could be any of: {several}", hint="give more digits, or the name")
    return next(iter(found.values()), None)


def unknown(wanted: str, names: Iterable[str]) -> ImageNotFound:
    """The error for an unknown image; its hint has similar names."""
    import difflib  # only mistakes need it

    close = difflib.get_close_matches(wanted, list(names), n=_SHOWN, cutoff=0.5)
    hint = f"similar names: {', '.join(close)}" if close else "`dutyfree image list` shows all images"
    return ImageNotFound(f"there is no image {wanted!r}", hint=hint)


def named_now(name: str, image: Image, source: str) -> NamedImage:
    """The image with this name and the current time."""
    check_name(name)
    return NamedImage(name, image, time.time(), source[:MAX_SOURCE_CHARACTERS])


def _is_name(name: str) -> bool:
    parts = name.split("/")
    is_formed = len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name) is not None
    return is_formed and not {"", ".", ".."} & set(parts) and not name.startswith("sha256:")


def _name_of(path: Path) -> str:
    return path.stem.replace("%", "/")


def _parsed(data: dict[str, object], name: str) -> NamedImage:
    match data:
        case {"name": str(written), "image": image, "created_s": int() | float() as created_s, "source": str(source)}:
            if written == name and math.isfinite(created_s):
                stored = Image.from_dict(image)
                if stored.is_stored:
                    return NamedImage(name, stored, created_s, source)
    raise documents.Broken("it does not describe an image")
