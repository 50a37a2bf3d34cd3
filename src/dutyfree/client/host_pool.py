"""The pool of a host: warm sandboxes for whoever leases, and what can be said to it and asked of it."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from dutyfree.client.box import Box
from dutyfree.contract import SpanListener, Substrate
from dutyfree.errors import CapacityError, SubstrateFailed
from dutyfree.images.store import Store
from dutyfree.model import Image, Recipe, Resources, SandboxSpec
from dutyfree.pool.binding import Binding
from dutyfree.pool.board import EVERY_S, Board
from dutyfree.pool.costs import Costs, load_costs_or_none, save_costs
from dutyfree.pool.demand import Announcement
from dutyfree.pool.known import KnownLadders
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.pool import Pool
from dutyfree.pool.staging import Build, Layers, Stager
from dutyfree.pool.status import PoolStatus
from dutyfree.pool.tenancy import Grant
from dutyfree.threads import in_thread

DEFAULT_LASTING_S = 3600.0
MAX_NAMES = 4096


class PoolKeeper:
    """A pool, with what it needs of its host: the host's side of it."""

    def __init__(
        self,
        substrate: Substrate,
        options: PoolOptions,
        store: Store | None,
        build: Build,
        on_span: SpanListener | None,
    ) -> None:
        self._options = options
        layers = Layers(store, build, options.layers) if store is not None else None
        self._stager = Stager(substrate, layers)
        self._ladders = KnownLadders(self._stager)
        self._costs_file = Path(options.costs) if options.costs is not None else None
        self._costs, damage = load_costs_or_none(self._costs_file) if self._costs_file is not None else (Costs(), "")
        if damage:
            warnings.warn(f"what was measured before is lost: {damage}", stacklevel=2)
        self._pool = Pool(self._stager, options, substrate.capabilities, on_span, self._costs)
        self._calls = 0
        self._announced: dict[str, list[str]] = {}
        """What was announced last under each name."""
        self._board: Board | None = None
        self._shows: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to keep sandboxes warm."""
        self._board = await in_thread(Board)
        await self._pool.open()
        self._shows = asyncio.create_task(self._show(self._board))

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
            if self._board is not None:
                await in_thread(self._board.close)

    def tell_of_ends(self, listener: Callable[[Grant], None] | None) -> None:
        """Have somebody told of each lease that ends, with its spans: `measure.live` keeps them."""
        self._pool.on_end = listener

    @asynccontextmanager
    async def leased(
        self,
        what: Recipe | Image,
        spec: SandboxSpec,
        bound: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        **asked: Any,
    ) -> AsyncIterator[Box]:
        """A box for the length of the block; see `LocalHost.lease`."""
        binding = Binding(**{name: value for name, value in bound.items() if value is not None})
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        start_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                wanted = await self._ladders.find(what, spec)
        except TimeoutError:
            raise CapacityError(
                f"it was not built within {timeout_s:g} s", hint="it goes on; come back later"
            ) from None
        left_s = max(0.001, timeout_s - (time.monotonic() - start_s))
        grant = await self._pool.acquire(wanted, binding=binding, timeout_s=left_s, **asked)
        try:
            yield Box(grant.sandbox, partial(self._pool.renew, grant))
        finally:
            await asyncio.shield(self._pool.release(grant))

    async def _show(self, board: Board) -> None:
        while True:
            with suppress(OSError):  # a full disk must not end what the pool is there for
                await in_thread(board.show, self._pool.status())
            await asyncio.sleep(EVERY_S)

    async def _keep_costs(self) -> None:
        if self._costs_file is not None:
            try:
                await in_thread(save_costs, self._costs_file, self._costs)
            except OSError as error:
                raise SubstrateFailed(
                    f"cannot keep the costs in {str(self._costs_file)!r}: {error.strerror}"
                ) from error


class HostPool(PoolKeeper):
    """The pool of a host, as its users see it."""

    async def prepare(self, wanted: Sequence[Recipe | Image], *, resources: Resources | None = None) -> None:
        """Find the way to each of these, and build the layers: what its first lease would otherwise wait for.

        Raises as `LocalHost.build` does.
        """
        spec = SandboxSpec(resources=resources if resources is not None else Resources())
        for what in wanted:
            await self._ladders.find(what, spec)

    async def announce(
        self,
        demand: Sequence[tuple[Recipe | Image, int]],
        *,
        name: str,
        in_s: float = 0.0,
        lasting_s: float = DEFAULT_LASTING_S,
        resources: Resources | None = None,
    ) -> None:
        """So many leases on each of these are going to be asked for, `in_s` seconds from now: have them ready.

        What comes first is made ready first. The same `name` again replaces what was said; what nobody came for within
        `lasting_s` lapses. Recipes are built before this returns; raises as `LocalHost.build` does.
        """
        spec = SandboxSpec(resources=resources if resources is not None else Resources())
        wanted = [await self._ladders.find(what, spec) for what, _ in demand]
        at_s = time.monotonic() + in_s
        self._calls += 1
        told = [
            (Announcement(f"{name}/{self._calls}/{number}", each.ladder.top, count, at_s, at_s + lasting_s), each)
            for number, (each, (_, count)) in enumerate(zip(wanted, demand, strict=True))
        ]
        for former in self._announced.pop(name, ()):
            self._pool.demand.withdraw(former)
        self._pool.announce(told)
        self._announced[name] = [each.id for each, _ in told]
        if len(self._announced) > MAX_NAMES:
            del self._announced[next(iter(self._announced))]  # those that are so old have lapsed, or were met

    def status(self) -> PoolStatus:
        """What there is, and what has happened so far; `dutyfree pool status` shows the same from outside."""
        return self._pool.status()
