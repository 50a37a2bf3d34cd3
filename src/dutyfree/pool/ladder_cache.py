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
from dutyfree.values import dataclass

MAX_KNOWN: Final = 4096


@dataclass(slots=True)
class _Found:
    """The goal of a recipe, or the build that leads to it."""

    what: Recipe
    """Kept so that no other object gets its id, which is part of the key."""
    task: asyncio.Task[Wanted]
    waiters: int = 0


class LadderCache:
    """Keeps the goal of each recipe and image object, as it was when the object was used first.

    Reading a recipe's inputs and building its layers takes milliseconds to minutes; leasing a warm sandbox takes less
    than a millisecond. The cache does not see changed inputs: load the recipe again to use them.
    """

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self._found: OrderedDict[Hashable, _Found] = OrderedDict()
        self._withdrawn: set[asyncio.Task[Wanted]] = set()
        """Builds that were cancelled and have not ended yet."""
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
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Found(what, asyncio.create_task(self._stager.wanted(what, spec)))
            if len(self._found) > MAX_KNOWN:
                self._found.popitem(last=False)
        task = found.task
        if not task.done():
            found.waiters += 1
            try:
                await asyncio.wait({task})
            finally:
                found.waiters -= 1
        if task.cancelled() or task.exception() is not None:
            self._found.pop(key, None)
        if task.cancelled():
            raise SubstrateFailed("the pool was closed while the recipe was built")
        return task.result()

    def withdraw(self, what: Recipe, spec: SandboxSpec) -> None:
        """Cancel the build of a recipe, unless a caller of `find` waits for it. Does nothing if there is none."""
        key = _key(what, spec)
        found = self._found.get(key)
        if found is not None and not found.waiters and not found.task.done():
            del self._found[key]  # the next `find` begins a new build
            self._withdrawn.add(found.task)
            found.task.add_done_callback(self._withdrawn.discard)
            found.task.cancel()

    async def close(self) -> None:
        """Cancel all builds in progress."""
        tasks = [*self._withdrawn, *(each.task for each in self._found.values() if not each.task.done())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _key(what: object, spec: SandboxSpec) -> Hashable:
    return id(what), spec.resources, spec.network, spec.writes, spec.hostname, spec.mounts, spec.caches
