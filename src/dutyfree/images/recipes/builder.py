"""Builds recipes. Concurrent builders build each stage once, and a failed stage leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.contract import Substrate
from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.images.recipes import bases, digests, inputs, progress
from dutyfree.images.recipes.progress import EventKind, Progress, StageProgress
from dutyfree.images.recipes.stage import StageWork
from dutyfree.images.store import FileLock, Store
from dutyfree.model import Image
from dutyfree.model.recipe import Recipe
from dutyfree.threads import in_thread

MAX_WAIT_S: Final = 6 * 3600.0
"""The longest wait for another builder of the same stage."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25


@dataclass(frozen=True, slots=True)
class BuiltStage:
    """The result of a stage; the first one of each build is the base."""

    name: str
    digest: str
    cached: bool
    """Whether the stage was built earlier or by another builder."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Built:
    """The built image of a recipe; it is in the store."""

    image: Image
    stages: tuple[BuiltStage, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """The base or a stage, which is built over the image of the previous step."""

    name: str
    digest: str
    title: str
    build: Callable[[Image | None], Awaitable[Image]]


async def build(
    recipe: Recipe,
    substrate: Substrate,
    store: Store,
    *,
    name: str | None = None,
    on_progress: Progress = progress.ignore,
    rebuild: bool = False,
) -> Built:
    """Build the stages of a recipe that the store lacks; with `rebuild`, all of them. The image gets `name`, if given.

    `substrate` must be open and use `store` for its images. If a stage fails, the stages before it stay in the store.
    Raises BuildFailed (a line of the recipe failed; has the stage and the end of its log), InvalidRequest (an input or
    the base is missing), Unsupported (a substrate without images or snapshots), CapacityError, InfraFailed.
    """
    with contextlib.ExitStack() as held:
        building = _Building(substrate, store, on_progress, held, rebuild)
        built = await building.run(recipe)
        if name is not None:  # tag the image while its layers are held
            await in_thread(store.tag, name, built.image, source="recipe")
        return built


class _Building:
    def __init__(
        self,
        substrate: Substrate,
        store: Store,
        on_progress: Progress,
        held: contextlib.ExitStack,
        rebuild: bool,
    ) -> None:
        self._substrate = substrate
        self._store = store
        self._on_progress = on_progress
        self._held = held
        self._rebuild = rebuild

    async def run(self, recipe: Recipe) -> Built:
        base = await bases.find(recipe.base, self._store)
        steps = await self._steps(recipe, base)
        # A stage in the store needs no stage below it, so those may be missing.
        skipped, image = await self._deepest(steps)
        if image is None and base.ready is not None:
            await self._hold(base.ready)
            skipped, image = 1, base.ready
        outcomes: list[BuiltStage] = []
        for number, step in enumerate(steps):
            report = StageProgress(self._on_progress, step.name, number, len(steps) - 1)
            if number < skipped:
                report(EventKind.CACHED)
                outcomes.append(BuiltStage(step.name, step.digest, cached=True, seconds=0.0))
            else:
                image, outcome = await self._step(step, image, report)
                outcomes.append(outcome)
        assert image is not None
        return Built(image, tuple(outcomes))

    async def _steps(self, recipe: Recipe, base: bases.Base) -> list[_Step]:
        """The base and all stages, each with a digest of its content."""

        async def obtain(_: Image | None) -> Image:
            report = StageProgress(self._on_progress, "base", 0, len(recipe.stages))
            report(EventKind.LINE, f"getting {recipe.base}")
            return await base.obtain(self._store, report)

        steps = [_Step("base", base.digest, recipe.base, obtain)]
        for number, stage in enumerate(recipe.stages, start=1):
            prints = [await in_thread(inputs.fingerprint, Path(given.source)) for given in stage.files]
            report = StageProgress(self._on_progress, stage.name, number, len(recipe.stages))
            work = StageWork(self._substrate, self._store, stage, prints, report)
            digest = digests.stage_digest(steps[-1].digest, stage, prints)
            steps.append(_Step(stage.name, digest, stage.name, work.build))
        return steps

    async def _deepest(self, steps: list[_Step]) -> tuple[int, Image | None]:
        """The number of steps that need no build, and the image of the last one."""
        for number in reversed(range(len(steps))):
            image = await self._cached(steps[number].digest)
            if image is not None:
                return number + 1, image
        return 0, None

    async def _cached(self, digest: str) -> Image | None:
        """The image of a step from the store, held until the end of the build; None if the store does not have it."""
        if self._rebuild:
            return None
        image = await in_thread(self._store.recall, digest)
        if image is None:
            return None
        try:
            await self._hold(image)
        except InvalidRequest:
            return None  # another process pruned it after `recall`
        return image

    async def _hold(self, image: Image) -> None:
        await in_thread(lambda: self._held.enter_context(self._store.hold(image.layers)))

    async def _step(self, step: _Step, parent: Image | None, report: StageProgress) -> tuple[Image, BuiltStage]:
        start_s = time.monotonic()
        lock, image = await self._lock_or_image(step, report)
        if lock is not None:
            try:
                # The previous holder of the lock may have built the step.
                image = await self._cached(step.digest)
                if image is None:
                    return await self._make(step, parent, report, start_s)
            finally:
                lock.release(remove=True)
        assert image is not None
        report(EventKind.CACHED)
        return image, BuiltStage(step.name, step.digest, cached=True, seconds=time.monotonic() - start_s)

    async def _lock_or_image(self, step: _Step, report: StageProgress) -> tuple[FileLock | None, Image | None]:
        """The lock to build the step or, if another builder has built it, the image."""
        end_s, pause_s = time.monotonic() + MAX_WAIT_S, _FIRST_PAUSE_S
        while True:
            lock = self._store.try_building(step.digest)
            if lock is not None:
                return lock, None
            if pause_s == _FIRST_PAUSE_S:
                report(EventKind.WAITING)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            image = await self._cached(step.digest)
            if image is not None:
                return None, image
            if time.monotonic() > end_s:
                raise CapacityError(f"another builder was building stage {step.name!r} for {MAX_WAIT_S:.0f} s")

    async def _make(
        self, step: _Step, parent: Image | None, report: StageProgress, start_s: float
    ) -> tuple[Image, BuiltStage]:
        report(EventKind.STARTED)
        image = await step.build(parent)
        await self._hold(image)
        await in_thread(self._store.remember, step.digest, image, title=step.title)
        seconds = time.monotonic() - start_s
        report(EventKind.DONE, seconds=seconds)
        return image, BuiltStage(step.name, step.digest, cached=False, seconds=seconds)
