"""The user's interface to the pool of a host: prepare images, announce demand, read the status."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dutyfree.client.billing import with_others
from dutyfree.client.leasing import Leasing
from dutyfree.model import Bill, Image, Recipe, Resources, SandboxSpec
from dutyfree.pool.demand import Announcement
from dutyfree.pool.grants import Grant
from dutyfree.pool.status import PoolStatus

DEFAULT_LASTING_S = 3600.0
"""How long an announcement lasts by default."""
MAX_NAMES = 4096
"""The most names of announcements that are kept."""
MAX_BUILD_S = 24 * 3600.0
"""The longest build of one prepared or announced recipe."""


class HostPool:
    """The user's interface to the pool of a host."""

    def __init__(self, leasing: Leasing) -> None:
        self._leasing = leasing
        self._pool = leasing.pool
        self._calls = 0
        self._announced: dict[str, list[str]] = {}
        """The ids of the latest announcements under each name."""

    async def prepare(self, wanted: Sequence[Recipe | Image], *, resources: Resources | None = None) -> None:
        """Build the layers of each recipe now, so that its first lease need not wait for the build.

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
        """Announce the number of leases for each recipe or image, `in_s` seconds from now, so that the pool prepares.

        The pool prepares the entries in their order. A new announcement replaces an earlier one with the same `name`.
        Leases that are not requested within `lasting_s` lapse. Recipes are built before this returns. Raises as
        `Host.build` does.
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
            del self._announced[next(iter(self._announced))]  # the oldest: it has most likely lapsed or arrived

    def status(self) -> PoolStatus:
        """The sandboxes, requests and counters of the pool; `dutyfree pool status` shows the same."""
        return self._pool.status()

    def bill(self) -> Bill:
        """What leases and the pool have cost since the host was opened: `Host.bill`, for holders of the pool alone."""
        return with_others(self._pool.bill(), self._leasing.isolation, None)

    def expected(self) -> int:
        """The number of announced leases that have not been requested yet."""
        return sum(count for _, count, _ in self._pool.core.demand.announced(time.monotonic()))

    def on_end(self, listener: Callable[[Grant], None] | None) -> None:
        """Call `listener` with the grant and the spans of each lease that ends; `measure.live` records them."""
        self._pool.on_end = listener
