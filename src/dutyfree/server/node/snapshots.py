"""Snapshots that clients have taken on this node. An owner finds its own alone, by a name that cannot be guessed."""

from __future__ import annotations

import secrets
from typing import Final

from dutyfree.contract import Snapshot
from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.model import Image
from dutyfree.protocol.frames import SNAPSHOT_PREFIX

MAX_FOR_OWNER: Final = 4096


class SnapshotTable:
    """Snapshots and the images that were saved of them, by owner and reference, as long as the node lives."""

    def __init__(self) -> None:
        self._images: dict[str, dict[str, Image]] = {}
        self._snapshots: dict[tuple[str, str], Snapshot] = {}

    def add(self, owner: str, snapshot: Snapshot) -> Image:
        """The snapshot's image as its owner may name it. Raises CapacityError."""
        image = self._add(owner, snapshot.image)
        self._snapshots[owner, image.reference] = snapshot
        return image

    def _add(self, owner: str, image: Image) -> Image:
        own = self._images.setdefault(owner, {})
        if len(own) >= MAX_FOR_OWNER:
            raise CapacityError(f"{MAX_FOR_OWNER} snapshots of this owner exist already", hint="discard some of them")
        reference = SNAPSHOT_PREFIX + secrets.token_hex(16)
        own[reference] = image
        return Image(reference=reference, over_host=False, env=image.env, cwd=image.cwd, user=image.user)

    def find(self, owner: str, reference: str) -> Image:
        """The image. Raises InvalidRequest: also for one of another owner, in the same words."""
        image = self._images.get(owner, {}).get(reference)
        if image is None:
            hint = "lease an image of the node by its name, or one from a snapshot that was taken on it"
            raise InvalidRequest("this node has no such image", hint=hint)
        return image

    async def save(self, owner: str, reference: str) -> Image:
        """An image in the node's store of what a snapshot has. Raises as `find`, and as `Snapshot.save`."""
        self.find(owner, reference)
        snapshot = self._snapshots.get((owner, reference))
        if snapshot is None:
            raise InvalidRequest("this image is in the node's store already")
        return self._add(owner, await snapshot.save())

    async def discard(self, owner: str, reference: str) -> None:
        """Forget a snapshot and free what it holds. Does nothing for one that is not known."""
        self._images.get(owner, {}).pop(reference, None)
        if (snapshot := self._snapshots.pop((owner, reference), None)) is not None:
            await snapshot.discard()
