"""Snapshots that clients have taken on this node. An owner finds its own alone, by a name that cannot be guessed."""

from __future__ import annotations

import secrets
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.model import Image

PREFIX: Final = "dutyfree-snapshot:"
MAX_FOR_OWNER: Final = 4096


class SnapshotTable:
    """Images of snapshots, by owner and reference, as long as the node lives."""

    def __init__(self) -> None:
        self._images: dict[str, dict[str, Image]] = {}

    def add(self, owner: str, image: Image) -> Image:
        """The image as its owner may name it. Raises CapacityError."""
        own = self._images.setdefault(owner, {})
        if len(own) >= MAX_FOR_OWNER:
            raise CapacityError(f"{MAX_FOR_OWNER} snapshots of this owner exist already", hint="discard some of them")
        reference = PREFIX + secrets.token_hex(16)
        own[reference] = image
        return Image(reference=reference, over_host=False, env=image.env, cwd=image.cwd, user=image.user)

    def find(self, owner: str, reference: str) -> Image:
        """The image. Raises InvalidRequest: also for one of another owner, in the same words."""
        image = self._images.get(owner, {}).get(reference)
        if image is None:
            hint = "lease an image of the node by its name, or one from a snapshot that was taken on it"
            raise InvalidRequest("this node has no such image", hint=hint)
        return image
