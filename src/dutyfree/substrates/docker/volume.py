"""The volume in which an engine has our guest: put there once, and mounted read-only into each container.

A file that is put into a container costs an engine 50 ms each time; a volume costs nothing, cannot be changed from
inside, works wherever the engine is, and is no part of what a snapshot keeps.
"""

from __future__ import annotations

import asyncio

from dutyfree.substrates.docker import plan
from dutyfree.substrates.docker.client import Engine


class GuestVolume:
    """Made when the first container needs it; gone with the substrate."""

    def __init__(self, engine: Engine, owner: str, program: bytes) -> None:
        self._engine = engine
        self._owner = owner
        self._program = program
        self._turn = asyncio.Lock()
        self._filled = False

    async def fill(self, image: str) -> None:
        """Have the guest in it. `image` is any that the engine has: a container is needed to reach into a volume."""
        if self._filled:
            return
        async with self._turn:
            if not self._filled:
                await self._fill(image)
                self._filled = True

    def forget(self) -> None:
        """Somebody has removed it: the next container needs it again."""
        self._filled = False

    async def remove(self) -> None:
        """Give it back; no container uses it any more."""
        await self._engine.remove_volume(plan.volume(self._owner))

    async def _fill(self, image: str) -> None:
        await self._engine.create_volume(plan.volume(self._owner), {plan.OWNER_LABEL: self._owner})
        porter = await self._engine.create(plan.porter(image, self._owner))
        try:
            archive = plan.guest_archive(self._program)
            await self._engine.put_archive(porter, plan.GUEST_DIRECTORY, archive)
        finally:
            await asyncio.shield(self._engine.remove(porter))
