"""The cache of stages: the image of each built stage."""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.images.store import documents
from dutyfree.images.store.layout import hex_of, is_hex
from dutyfree.model.image import Image
from dutyfree.values import dataclass

MAX_TITLE_CHARACTERS = 1000
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class CachedStage:
    """A built stage and its image."""

    digest: str
    title: str
    image: Image
    created_s: float
    used_s: float
    """Unix time of its last use."""


class Stages:
    """The directory of built stages. The time of a file is that of the stage's last use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, stage: str, image: Image, title: str, draft: Path) -> None:
        """Store the stage's image. The caller must hold the store's lock."""
        data = {"stage": stage, "title": title[:MAX_TITLE_CHARACTERS], "image": image.as_dict()}
        documents.publish_document({**data, "created_s": time.time()}, self._path(stage), draft)

    def get(self, stage: str) -> CachedStage | None:
        """The cached stage; None if it is unknown. Raises documents.Broken if its entry is damaged."""
        path = self._path(stage)
        try:
            used_s = path.stat().st_mtime
            return _parsed(documents.read(path), stage, used_s)
        except FileNotFoundError:
            return None
        except InvalidRequest as error:
            raise documents.Broken(f"{path.name}: {error}") from error

    def touch(self, stage: str) -> None:
        """Set the time of the stage's last use to now."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(stage))

    def remove(self, stage: str) -> None:
        """Forget a stage, even if its entry is damaged."""
        self._path(stage).unlink(missing_ok=True)

    def all(self) -> tuple[list[CachedStage], list[str]]:
        """The readable stages, and the digests of the damaged ones."""
        stages, damaged = [], []
        for stage in self._written():
            try:
                cached = self.get(stage)
            except documents.Broken:
                damaged.append(stage)
            else:
                stages += [cached] if cached is not None else []
        return stages, damaged

    def _written(self) -> list[str]:
        return sorted(f"sha256:{path.stem}" for path in self._directory.iterdir() if is_stage_file(path))

    def _path(self, stage: str) -> Path:
        return self._directory / (hex_of(stage) + _SUFFIX)


def is_stage_file(path: Path) -> bool:
    """Whether a path has the form of a stage's file."""
    return path.suffix == _SUFFIX and is_hex(path.stem)


def _parsed(data: dict[str, object], stage: str, used_s: float) -> CachedStage:
    match data:
        case {"stage": str(digest), "title": str(title), "image": image, "created_s": int() | float() as created_s}:
            if digest == stage and math.isfinite(created_s):
                stored = Image.from_dict(image)
                if stored.is_stored:
                    return CachedStage(stage, title, stored, created_s, used_s)
    raise documents.Broken("it does not describe a stage")
