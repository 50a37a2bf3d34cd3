"""The pool of a host: what its users can say to it and ask of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dutyfree.client.leasing import Leasing
from dutyfree.model import Image, Recipe, Resources, SandboxSpec
from dutyfree.pool.demand import Announcement
from dutyfree.pool.grants import Grant
from dutyfree.pool.status import PoolStatus

DEFAULT_LASTING_S = 3600.0
MAX_NAMES = 4096
MAX_BUILD_S = 24 * 3600.0
"""How long the builds of what is prepared or announced may take, each."""


class HostPool:
    """The pool of a host, as its users see it."""

    def __init__(self, leasing: Leasing) -> None:
        self._leasing = leasing
        self._pool = leasing.pool
        self._calls = 0
        self._announced: dict[str, list[str]] = {}
        """The ids of what was announced last under each name."""

    async def prepare(self, wanted: Sequence[Recipe | Image], *, resources: Resources | None = None) -> None:
        """Find the way to each of these and build its layers: the first lease would wait for it otherwise.

        Raises as `Host.build` does.
        """
        spec = SandboxSpec(resources=resources if resources is not None else Resources())
        for what in wanted:
            await self._leasing.find(what, spec, MAX_BUILD_S)

    async def announce(
        self,
        demand: Sequence[tuple[Recipe | Image, int]],
        *,
        name: str,
        in_s: float = 0.0,
        lasting_s: float = DEFAULT_LASTING_S,
        resources: Resources | None = None,
    ) -> None:
        """This many leases on each of these are going to be asked for, `in_s` seconds from now: have them ready.

        Entries are made ready in their order. The same `name` again replaces what was announced under it; what was not
        asked for within `lasting_s` lapses. Recipes are built before this returns; raises as `Host.build` does.
        """
        spec = SandboxSpec(resources=resources if resources is not None else Resources())
        wanted = [await self._leasing.find(what, spec, MAX_BUILD_S) for what, _ in demand]
        at_s = time.monotonic() + in_s
        self._calls += 1
        announced = [
            (Announcement(f"{name}/{self._calls}/{number}", each.ladder.top, count, at_s, at_s + lasting_s), each)
            for number, (each, (_, count)) in enumerate(zip(wanted, demand, strict=True))
        ]
        self._pool.announce(announced, withdrawn=self._announced.pop(name, ()))
        self._announced[name] = [each.id for each, _ in announced]
        if len(self._announced) > MAX_NAMES:
            del self._announced[next(iter(self._announced))]  # names that old have lapsed or were met

    def status(self) -> PoolStatus:
        """What there is, and what has happened so far; `dutyfree pool status` shows the same from outside."""
        return self._pool.status()

    def expected(self) -> int:
        """How many announced leases have not been asked for yet."""
        return sum(count for _, count, _ in self._pool.core.demand.announced(time.monotonic()))

    def on_end(self, listener: Callable[[Grant], None] | None) -> None:
        """Call `listener` with each lease that ends, and its spans: `measure.live` keeps them."""
        self._pool.on_end = listener
