"""The lease path of a host: from a request for an image to a grant on a sandbox."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dutyfree.client.announcing import Announcements
from dutyfree.client.fetching import NamedImages
from dutyfree.contract import SpanListener
from dutyfree.errors import CapacityError, DutyfreeError, SubstrateFailed
from dutyfree.images.store import Store
from dutyfree.model import Image, Recipe, SandboxSpec
from dutyfree.pool.costs import Costs, load_costs_or_none, save_costs
from dutyfree.pool.ladder_cache import LadderCache
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.pool import Pool
from dutyfree.pool.staging import Build, Layers, Stager
from dutyfree.pool.wanted import Wanted
from dutyfree.substrates.guarded import GuardedSubstrate
from dutyfree.threads import in_thread
from dutyfree.trace import now_ns

if TYPE_CHECKING:
    from dutyfree.pool.status import PoolStatus
    from dutyfree.pool.status_file import StatusFile

HOST_ROOT: Final = Image()
"""The image of a lease without one. It is a single object, because the ladder cache uses the identity of images."""
MAX_BUILD_S: Final = 24 * 3600.0
"""The longest build of one prepared or announced recipe."""


class Leasing:
    """Everything that a host needs to lease sandboxes: its pool, the goals of images, the costs and status files.

    Every host has one. A host without warm sandboxes uses the options `pool.options.WITHOUT_A_POOL`.
    """

    def __init__(
        self,
        substrate: GuardedSubstrate,
        options: PoolOptions,
        store: Store | None,
        build: Build,
        on_span: SpanListener | None,
        *,
        shown: bool,
    ) -> None:
        """`shown` says whether `dutyfree top` shows the pool."""
        layers = Layers(store, build, options.layers) if store is not None else None
        self.isolation = substrate.isolation
        self._stager = Stager(substrate, layers)
        self._ladders = LadderCache(self._stager)
        self.images = NamedImages(substrate)
        self._remembers_recipes = shown
        self._costs_file = Path(options.costs) if options.costs is not None else None
        self._costs, damage = load_costs_or_none(self._costs_file) if self._costs_file is not None else (Costs(), "")
        if damage:
            warnings.warn(f"earlier measurements are lost: {damage}", stacklevel=2)
        self.pool = Pool(
            self._stager,
            options,
            substrate.capabilities,
            on_span,
            self._costs,
            # A pool plans by costs and keeps the spans of each lease; a host without one has no use for either: its
            # bill needs counters alone.
            measures=shown or on_span is not None,
        )
        self.announcements = Announcements(
            self.pool, self._ladders, lambda recipe, spec: self.find(recipe, spec, MAX_BUILD_S)
        )
        self._status_file: StatusFile | None = None
        self._status_writer: asyncio.Task[None] | None = None
        self._shown = shown

    async def open(self) -> None:
        """Begin to give out leases and to keep sandboxes warm."""
        if self._shown:
            from dutyfree.pool.status_file import StatusFile  # for pools alone

            self._status_file = await in_thread(StatusFile)
        await self.pool.open()
        if self._status_file is not None:
            self._status_writer = asyncio.create_task(self._write_status(self._status_file))

    async def close(self) -> None:
        """End every lease and every sandbox. Raises SubstrateFailed."""
        if self._status_writer is not None:
            self._status_writer.cancel()
            await asyncio.wait({self._status_writer})
        try:
            await self.announcements.close()
            await self.images.close()
            await self._ladders.close()
        finally:
            await self._close_pool()

    async def _close_pool(self) -> None:
        try:
            await self.pool.close()
        finally:
            await self._stager.close()
            await self._save_costs()
            if self._status_file is not None:
                await in_thread(self._status_file.close)

    async def image(self, what: Recipe | Image | str | None, *, timeout_s: float | None = None) -> Recipe | Image:
        """What a lease starts from; None is the host's own root. Raises as `NamedImages.find` does."""
        if isinstance(what, str):
            return await self.images.find(what, timeout_s=timeout_s)
        return HOST_ROOT if what is None else what

    async def find(
        self, what: Recipe | Image, spec: SandboxSpec, timeout_s: float, *, for_lease: bool = False
    ) -> Wanted:
        """The goal of sandboxes for a recipe or image. A recipe is built if necessary.

        A host with a pool caches the goals of recipes, because computing one takes longer than leasing a warm sandbox.
        `for_lease` says whether a lease waits for it: for the bill. Raises CapacityError after `timeout_s`.
        """
        if isinstance(what, Image):
            return self._ladders.of_image(what, spec)
        start_ns = now_ns()
        try:
            async with asyncio.timeout(timeout_s):
                if self._remembers_recipes:
                    return await self._ladders.find(what, spec)
                return await self._stager.wanted(what, spec)
        except TimeoutError:
            hint = "the build goes on; try again later" if self._remembers_recipes else "give it more time: timeout_s="
            late = CapacityError(f"the image was not built within {timeout_s:g} s", hint=hint)
            self.pool.billing.failed("build", late)
            raise late from None
        except DutyfreeError as error:
            self.pool.billing.failed("build", error)
            raise
        finally:
            self.pool.billing.built(now_ns() - start_ns, for_lease=for_lease)

    def status(self) -> PoolStatus:
        """The status of the pool, with what is built for announcements."""
        announcements = self.announcements
        return replace(self.pool.status(), builds=announcements.builds(), build_errors=announcements.errors())

    async def _write_status(self, status_file: StatusFile) -> None:
        from dutyfree.pool.status_file import EVERY_S

        while True:
            with suppress(OSError):  # a full disk must not stop the pool
                await in_thread(status_file.write, self.status())
            await asyncio.sleep(EVERY_S)

    async def _save_costs(self) -> None:
        if self._costs_file is not None:
            try:
                await in_thread(save_costs, self._costs_file, self._costs)
            except OSError as error:
                raise SubstrateFailed(
                    f"cannot write the costs to {str(self._costs_file)!r}: {error.strerror}"
                ) from error
