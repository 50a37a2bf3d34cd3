"""The ladders of what was asked for: found once, not at every request."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Image, Recipe, SandboxSpec
from dutyfree.pool.ladders import Wanted
from dutyfree.pool.staging import Stager
from dutyfree.pool.state import Ladder, State

MAX_KNOWN: Final = 4096
MAX_LADDERS: Final = 32_768
"""More than demand can be announced for."""


class Ladders:
    """What anybody wanted lately, by the state that it ends in."""

    def __init__(self) -> None:
        self._wanted: OrderedDict[State, Wanted] = OrderedDict()

    def add(self, wanted: Wanted) -> None:
        """Somebody wants it, or will; past `MAX_LADDERS`, what nobody asked for in the longest time is forgotten."""
        self._wanted[wanted.ladder.top] = wanted
        self._wanted.move_to_end(wanted.ladder.top)
        if len(self._wanted) > MAX_LADDERS:
            self._wanted.popitem(last=False)

    def by_top(self) -> dict[State, Ladder]:
        """All of them."""
        return {state: wanted.ladder for state, wanted in self._wanted.items()}

    def leading_to(self, state: State) -> Wanted | None:
        """One that ends in this state, or goes through it; None if it was forgotten."""
        found = self._wanted.get(state)
        return found or next((each for each in self._wanted.values() if state.begins(each.ladder.top)), None)


class KnownLadders:
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
        key = (id(what), spec.resources, spec.network, spec.upper, spec.hostname)
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
