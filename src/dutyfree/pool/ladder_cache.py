"""A cache of ladders, so that the ladder of a recipe or image is computed once and not for every request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Image, Recipe, SandboxSpec
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted, plain

MAX_KNOWN: Final = 4096


class LadderCache:
    """Keeps the goal of each recipe and image object, as it was when the object was used first.

    Reading a recipe's inputs and building its layers takes milliseconds to minutes; leasing a warm sandbox takes less
    than a millisecond. The cache does not see changed inputs: load the recipe again to use them.
    """

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self._found: OrderedDict[Hashable, tuple[object, asyncio.Task[Wanted]]] = OrderedDict()
        """Keys contain the id of the recipe. The entry holds the recipe itself, so that no other object gets its id."""
        self._images: OrderedDict[Hashable, tuple[Image, Wanted]] = OrderedDict()

    def of_image(self, image: Image, spec: SandboxSpec) -> Wanted:
        """The goal of sandboxes that start from an image."""
        key = _key(image, spec)
        found = self._images.get(key)
        if found is None:
            found = self._images[key] = (image, plain(replace(spec, image=image)))
            if len(self._images) > MAX_KNOWN:
                self._images.popitem(last=False)
        return found[1]

    async def find(self, what: Recipe, spec: SandboxSpec) -> Wanted:
        """The goal of a recipe for sandboxes of this spec. Raises as `Stager.wanted`; failures are not cached."""
        key = _key(what, spec)
        if key not in self._found:
            self._found[key] = (what, asyncio.create_task(self._stager.wanted(what, spec)))
            if len(self._found) > MAX_KNOWN:
                self._found.popitem(last=False)
        task = self._found[key][1]
        if not task.done():
            await asyncio.wait({task})
        if task.cancelled() or task.exception() is not None:
            self._found.pop(key, None)
        if task.cancelled():
            raise SubstrateFailed("the pool was closed while the recipe was built")
        return task.result()

    async def close(self) -> None:
        """Cancel all builds in progress."""
        tasks = [task for _, task in self._found.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _key(what: object, spec: SandboxSpec) -> Hashable:
    return id(what), spec.resources, spec.network, spec.writes, spec.hostname, spec.mounts
