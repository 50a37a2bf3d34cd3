"""The volume with our guest: filled once, and mounted read-only into each container.

Copying a file into a container would take an engine 50 ms each time. A volume costs nothing, cannot be changed from
inside, also works with a remote engine, and is not part of snapshots.
"""

from __future__ import annotations

import asyncio

from dutyfree.substrates.docker import plan
from dutyfree.substrates.docker.client import Engine


class GuestVolume:
    """One substrate's volume. Made for the first container, and removed when the substrate is closed."""

    def __init__(self, engine: Engine, owner: str, program: bytes) -> None:
        self._engine = engine
        self._owner = owner
        self._program = program
        self._lock = asyncio.Lock()
        self._filled = False

    async def fill(self, image: str) -> None:
        """Put the guest into the volume, unless it is there. `image`: any image for the container that gives access."""
        if self._filled:
            return
        async with self._lock:
            if not self._filled:
                await self._fill(image)
                self._filled = True

    def forget(self) -> None:
        """Fill the volume again for the next container, because it was removed from outside."""
        self._filled = False

    async def remove(self) -> None:
        """Remove the volume, once no container uses it."""
        await self._engine.remove_volume(plan.volume(self._owner))

    async def _fill(self, image: str) -> None:
        await self._engine.create_volume(plan.volume(self._owner), {plan.OWNER_LABEL: self._owner})
        porter = await self._engine.create(plan.porter(image, self._owner))
        try:
            archive = plan.guest_archive(self._program)
            await self._engine.put_archive(porter, plan.GUEST_DIRECTORY, archive)
        finally:
            await asyncio.shield(self._engine.remove(porter))
