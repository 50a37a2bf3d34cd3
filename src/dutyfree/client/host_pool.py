"""The user's interface to the pool of a host: prepare images, announce demand, wait for it, read the status."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dutyfree.client.billing import with_others
from dutyfree.client.leasing import MAX_BUILD_S, Leasing
from dutyfree.client.specs import spec_of
from dutyfree.model import Bill, Cache, Egress, Image, Mount, Network, Recipe, Resources, Writes
from dutyfree.model.cache import owned_by
from dutyfree.pool.grants import Grant
from dutyfree.pool.status import PoolStatus

DEFAULT_LASTING_S = 3600.0
"""How long an announcement lasts by default."""


class HostPool:
    """The user's interface to the pool of a host."""

    def __init__(self, leasing: Leasing) -> None:
        self._leasing = leasing
        self._pool = leasing.pool

    async def prepare(
        self, wanted: Sequence[Recipe | Image | str | None], *, resources: Resources | None = None
    ) -> None:
        """Build the layers of each recipe now, so that its first lease need not wait for the build.

        Raises as `Host.build` does.
        """
        spec = spec_of(resources, Network.NONE, Writes.MEMORY, ())
        for what in wanted:
            await self._leasing.find(await self._leasing.image(what), spec, MAX_BUILD_S)

    async def announce(
        self,
        demand: Sequence[tuple[Recipe | Image | str | None, int]],
        *,
        name: str,
        in_s: float = 0.0,
        lasting_s: float = DEFAULT_LASTING_S,
        resources: Resources | None = None,
        network: Network | Egress | str = Network.NONE,
        writes: Writes | str = Writes.MEMORY,
        mounts: Sequence[Mount] = (),
        caches: Sequence[Cache] = (),
    ) -> None:
        """Announce leases, `in_s` seconds from now, so that the pool prepares sandboxes. Returns at once.

        It waits only for images of a registry that the store lacks: these are fetched first.

        `demand` has what each lease will start from, as `lease` takes it, and the number of leases. The other arguments
        are those of `lease` that decide which sandboxes can be used: announce with the values with which you lease.
        Caches of leases with an owner are announced with it: `Cache(name, target, owner=...)`.

        Recipes are built in the background, a few at a time; `status` shows them. The error of a build is kept: `ready`
        raises it, the status shows it, and the end of the announcement warns of it if `ready` has not raised it.

        Entries are prepared in their order as far as the pool's limits allow. If not all of them fit, some places are
        for later entries, and the pool learns from the requests whether they come in the order of the entries or in
        turn. A new announcement replaces an earlier one with the same `name`; the builds of the earlier one that
        neither an announcement nor a lease wants are cancelled. Leases that are not requested within `lasting_s` lapse.

        Raises InvalidRequest for an invalid value or an unknown name of an image, and CapacityError for too many
        entries.
        """
        spec = spec_of(resources, network, writes, mounts, owned_by("", caches))
        at_s = time.monotonic() + in_s
        entries = [(await self._leasing.image(what), count) for what, count in demand]
        self._leasing.announcements.announce(name, entries, spec, at_s, at_s + lasting_s)

    async def ready(self, *, name: str | None = None, timeout_s: float | None = None) -> None:
        """Wait until what was announced under a name, or under all names, is ready, as far as it fits into the pool.

        That is: every recipe is built, and each announced lease that has not been requested yet has an idle sandbox of
        its own, except those for which the pool's limits leave no room beside leased sandboxes, waiting requests and
        earlier announcements. A pool with the policy `cold` keeps no sandboxes, so that only recipes are waited for.
        `timeout_s` is the pool's own by default.

        Raises DeadlineExceeded after `timeout_s`; the error of a recipe that could not be built, such as BuildFailed;
        and InvalidRequest for a name under which nothing was announced.
        """
        timeout_s = self._pool.timeout_s if timeout_s is None else timeout_s
        await self._leasing.announcements.ready(name, timeout_s)

    def status(self) -> PoolStatus:
        """The sandboxes, requests, builds and counters of the pool; `dutyfree pool status` shows the same."""
        return self._leasing.status()

    def bill(self) -> Bill:
        """What leases and the pool have cost since the host was opened: `Host.bill`, for holders of the pool alone."""
        return with_others(self._pool.bill(), self._leasing.isolation, None)

    def expected(self) -> int:
        """The number of announced leases that have not been requested yet."""
        announced = self._pool.core.demand.announced(time.monotonic())
        return sum(count for _, count, _ in announced) + self._leasing.announcements.pending()

    def on_end(self, listener: Callable[[Grant], None] | None) -> None:
        """Call `listener` with the grant and the spans of each lease that ends; `measure.live` records them."""
        self._pool.on_end = listener
