"""The present versions of caches: one small file for each, which names a layer."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.images.store import documents
from dutyfree.images.store.layout import hex_of, is_hex
from dutyfree.publish import sync_directory

ORIGIN = "cache"
"""The origin of the layers that are versions of caches: they are removed as soon as nothing needs them."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class CacheVersion:
    """The present version of a cache."""

    owner: str
    name: str
    layer: str
    saved_s: float
    """Unix time."""


def cache_key(owner: str, name: str) -> str:
    """A digest for a cache, by which its file and its lock are called: owners may have any characters."""
    return "sha256:" + hashlib.sha256(json.dumps(["cache", owner, name]).encode()).hexdigest()


class Caches:
    """The directory of caches."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, owner: str, name: str, layer: str, draft: Path) -> None:
        """Set the present version of a cache. The caller must hold the store's lock."""
        documents.publish_document(
            asdict(CacheVersion(owner, name, layer, time.time())), self._path(owner, name), draft
        )

    def get(self, owner: str, name: str) -> CacheVersion | None:
        """The present version; None if there is none, or if its file is damaged: a cache may be lost."""
        found = _read(self._path(owner, name))
        return found if found is not None and (found.owner, found.name) == (owner, name) else None

    def remove(self, owner: str, name: str) -> bool:
        """Forget a cache; returns whether it existed."""
        try:
            self._path(owner, name).unlink()
        except FileNotFoundError:
            return False
        sync_directory(self._directory)
        return True

    def all(self) -> tuple[list[CacheVersion], list[Path]]:
        """The readable ones, sorted by owner and name, and the files of the damaged ones."""
        found, damaged = [], []
        for path in sorted(self._directory.iterdir()):
            version = _read(path)
            if version is not None and path == self._path(version.owner, version.name):
                found.append(version)
            elif is_cache_file(path):
                damaged.append(path)
        return sorted(found, key=lambda each: (each.owner, each.name)), damaged

    def _path(self, owner: str, name: str) -> Path:
        return self._directory / (hex_of(cache_key(owner, name)) + _SUFFIX)


def is_cache_file(path: Path) -> bool:
    """Whether a path has the form of a cache's file."""
    return path.suffix == _SUFFIX and is_hex(path.stem)


def _read(path: Path) -> CacheVersion | None:
    try:
        data = documents.read(path)
        match data:
            case {"owner": str(owner), "name": str(name), "layer": str(layer), "saved_s": int() | float() as saved_s}:
                hex_of(layer)
                if math.isfinite(saved_s):
                    return CacheVersion(owner, name, layer, saved_s)
    except (documents.Broken, FileNotFoundError, InvalidRequest):
        pass
    return None
