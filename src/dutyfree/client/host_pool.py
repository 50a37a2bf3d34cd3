"""The pool of a host: what its users can say to it and ask of it, and what it needs of the host."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dutyfree.contract import SpanListener, Substrate
from dutyfree.errors import SubstrateFailed
from dutyfree.images.store import Store
from dutyfree.model import Image, Recipe, Resources, SandboxSpec
from dutyfree.pool.costs import Costs, load_costs_or_none, save_costs
from dutyfree.pool.demand import Announcement
from dutyfree.pool.grants import Grant
from dutyfree.pool.ladder_cache import LadderCache
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.pool import Pool
from dutyfree.pool.staging import Build, Layers, Stager
from dutyfree.pool.status import PoolStatus
from dutyfree.pool.status_file import EVERY_S, StatusFile
from dutyfree.pool.wanted import Wanted
from dutyfree.threads import in_thread

DEFAULT_LASTING_S = 3600.0
MAX_NAMES = 4096


class OpenPool:
    """A pool with all that belongs to its life: the way to images, the costs file, the status file."""

    def __init__(
        self,
        substrate: Substrate,
        options: PoolOptions,
        store: Store | None,
        build: Build,
        on_span: SpanListener | None,
        *,
        shown: bool,
    ) -> None:
        """`shown` says whether `dutyfree top` shows the pool."""
        layers = Layers(store, build, options.layers) if store is not None else None
        self._stager = Stager(substrate, layers)
        self._ladders = LadderCache(self._stager)
        self._keeps_ladders = shown
        self._costs_file = Path(options.costs) if options.costs is not None else None
        self._costs, damage = load_costs_or_none(self._costs_file) if self._costs_file is not None else (Costs(), "")
        if damage:
            warnings.warn(f"earlier measurements are lost: {damage}", stacklevel=2)
        self._pool = Pool(self._stager, options, substrate.capabilities, on_span, self._costs)
        self._status_file: StatusFile | None = None
        self._shows: asyncio.Task[None] | None = None
        self._shown = shown

    async def open(self) -> None:
        """Begin to give out leases and to keep sandboxes warm."""
        if self._shown:
            self._status_file = await in_thread(StatusFile)
        await self._pool.open()
        if self._status_file is not None:
            self._shows = asyncio.create_task(self._show(self._status_file))

    async def close(self) -> None:
        """End every lease and every sandbox. Raises SubstrateFailed."""
        if self._shows is not None:
            self._shows.cancel()
            await asyncio.wait({self._shows})
        await self._ladders.close()
        try:
            await self._pool.close()
        finally:
            await self._stager.close()
            await self._keep_costs()
            if self._status_file is not None:
                await in_thread(self._status_file.close)

    @property
    def leases(self) -> Pool:
        """The machinery below, which gives out grants; users take boxes from their host."""
        return self._pool

    async def find(self, what: Recipe | Image, spec: SandboxSpec) -> Wanted:
        """The way to sandboxes with this in them; a pool remembers it, so that a warm lease need not find it again."""
        if self._keeps_ladders:
            return await self._ladders.find(what, spec)
        return await self._stager.wanted(what, spec)

    async def _show(self, status_file: StatusFile) -> None:
        while True:
            with suppress(OSError):  # a full disk must not stop the pool
                await in_thread(status_file.write, self._pool.status())
            await asyncio.sleep(EVERY_S)

    async def _keep_costs(self) -> None:
        if self._costs_file is not None:
            try:
                await in_thread(save_costs, self._costs_file, self._costs)
            except OSError as error:
                raise SubstrateFailed(
                    f"cannot keep the costs in {str(self._costs_file)!r}: {error.strerror}"
                ) from error


class HostPool(OpenPool):
    """The pool of a host, as its users see it."""

    def __init__(
        self,
        substrate: Substrate,
        options: PoolOptions,
        store: Store | None,
        build: Build,
        on_span: SpanListener | None,
        *,
        shown: bool,
    ) -> None:
        super().__init__(substrate, options, store, build, on_span, shown=shown)
        self._calls = 0
        self._announced: dict[str, list[str]] = {}
        """The ids of what was announced last under each name."""

    async def prepare(self, wanted: Sequence[Recipe | Image], *, resources: Resources | None = None) -> None:
        """Find the way to each of these and build its layers: the first lease would wait for it otherwise.

        Raises as `Host.build` does.
        """
        spec = SandboxSpec(resources=resources if resources is not None else Resources())
        for what in wanted:
            await self.find(what, spec)

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
        wanted = [await self.find(what, spec) for what, _ in demand]
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
