"""What all snapshots have in common: saved and let go of one call at a time, and let go of once."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from dutyfree.contract import Snapshot
from dutyfree.errors import InvalidRequest
from dutyfree.model import Image


class KeptSnapshot(Snapshot):
    """Subclasses say how it is put into the store, and what letting go of it means."""

    def __init__(self, name: str, image: Image) -> None:
        self._name = name
        self._image = image
        self._discarded = False
        self._turn = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._name

    @property
    def image(self) -> Image:
        return self._image

    async def save(self) -> Image:
        async with self._turn:
            if not self._discarded:
                self._image = await self._put()
            elif not self._image.is_stored:
                raise InvalidRequest(f"snapshot {self.id} was discarded")
        return self._image

    async def discard(self) -> None:
        async with self._turn:
            if not self._discarded:
                self._discarded = True
                await self._let_go()

    @abstractmethod
    async def _put(self) -> Image:
        """Put it into the image store, if it is not there; what can then be started from."""

    @abstractmethod
    async def _let_go(self) -> None:
        """It is needed no more, except by sandboxes that were started from it."""
