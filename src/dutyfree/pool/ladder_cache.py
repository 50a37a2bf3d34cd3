"""The ladders of what was asked for: found once, not at every request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Image, Recipe, SandboxSpec
from dutyfree.pool.staging import Stager
from dutyfree.pool.wanted import Wanted

MAX_KNOWN: Final = 4096


class LadderCache:
    """Remembers the way to each recipe and image object, as it was when the object was used first.

    Reading a recipe's inputs and building its layers takes milliseconds to minutes; a warm sandbox takes less than one.
    Whoever wants changed inputs to be seen loads the recipe again.
    """

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self._found: OrderedDict[Hashable, tuple[object, asyncio.Task[Wanted]]] = OrderedDict()
        """With the object, so that its id is nobody else's."""

    async def find(self, what: Recipe | Image, spec: SandboxSpec) -> Wanted:
        """The way to `what` for sandboxes of this spec; raises as `Stager.wanted`, and tries again next time."""
        key = (id(what), spec.resources, spec.network, spec.writes, spec.hostname)
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
            raise SubstrateFailed("the pool was closed while this was built")
        return task.result()

    async def close(self) -> None:
        """Stop building."""
        tasks = [task for _, task in self._found.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
