"""Announcements by name: their recipes are built in the background, and announced to the pool as they are built."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import chain, islice
from typing import Final

from dutyfree.errors import (
    CallerError,
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    InvalidRequest,
    SandboxGone,
    SubstrateFailed,
)
from dutyfree.leases.fence import another_loop
from dutyfree.model import Image, Recipe, SandboxSpec
from dutyfree.pool.demand import MAX_ANNOUNCEMENTS, Announcement
from dutyfree.pool.ladder_cache import LadderCache
from dutyfree.pool.pool import Pool
from dutyfree.pool.state import State
from dutyfree.pool.wanted import Wanted
from dutyfree.values import dataclass

BUILDS_AT_ONCE: Final = 4
"""The most announced recipes that are built at the same time. A lease does not wait for these places."""
MAX_NAMES: Final = 4096
"""The most names of announcements that are kept."""
MAX_SHOWN: Final = 32
"""The most builds, and the most errors of builds, that a status shows."""
_SHOWN_CHARACTERS: Final = 300
_LOOK_EVERY_S: Final = 0.25
"""How often `ready` looks again when no operation ends: time alone changes what fits."""
_UNKNOWN: Final = State(())
"""The state of a recipe that is not built yet."""


@dataclass(slots=True, eq=False)
class _Build:
    """An entry of an announcement whose recipe is being built, or waits for it."""

    recipe: Recipe
    spec: SandboxSpec
    announcement: Announcement
    requested: int = 0
    """The leases that were requested before the recipe was announced to the pool: these do not come again."""

    @property
    def left(self) -> int:
        return self.announcement.count - self.requested

    @property
    def key(self) -> tuple[int, SandboxSpec]:
        return id(self.recipe), self.spec


@dataclass(slots=True, eq=False)
class _Named:
    """The latest announcement under a name."""

    group: str
    until_s: float
    states: dict[str, State] = field(default_factory=dict)
    """The states that were announced to the pool, by the ids of their announcements."""
    builds: dict[_Build, asyncio.Task[None]] = field(default_factory=dict)
    errors: dict[str, list[DutyfreeError]] = field(default_factory=dict)
    """The errors of builds, by the stages of the recipe."""
    raised: bool = False
    """Whether `ready` has raised one of the errors."""


class Announcements:
    """The announcements of a host. `find` gives the goal of a recipe, and builds the recipe if necessary."""

    def __init__(
        self, pool: Pool, ladders: LadderCache, find: Callable[[Recipe, SandboxSpec], Awaitable[Wanted]]
    ) -> None:
        self._pool = pool
        self._ladders = ladders
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._build_places = asyncio.Semaphore(BUILDS_AT_ONCE)
        self._calls = 0
        self._named: dict[str, _Named] = {}
        """The oldest announcement is at the front."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All builds that have not ended, also cancelled ones."""

    def announce(
        self, name: str, demand: Sequence[tuple[Recipe | Image, int]], spec: SandboxSpec, at_s: float, until_s: float
    ) -> None:
        """Announce images now and recipes as they are built, in place of the earlier announcement under this name.

        Raises InvalidRequest for a wrong count or time, and CapacityError for too many announcements.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise another_loop("a host")
        if len(demand) > MAX_ANNOUNCEMENTS:
            raise CapacityError(f"at most {MAX_ANNOUNCEMENTS} announcements are kept", hint="announce larger counts")
        group = f"{name}/{self._calls + 1}"
        new = _Named(group, until_s)
        known: list[tuple[Announcement, Wanted]] = []
        to_build: list[_Build] = []
        for place, (what, count) in enumerate(demand):
            announcement = Announcement(f"{group}/{place}", _UNKNOWN, count, at_s, until_s, group, place)
            if isinstance(what, Image):
                known.append(_with_goal(announcement, self._ladders.of_image(what, spec)))
            else:
                to_build.append(_Build(what, spec, announcement))
        former = self._named.get(name)
        self._pool.announce(known, withdrawn=former.states if former is not None else ())
        self._calls += 1
        new.states = {announcement.id: announcement.state for announcement, _ in known}
        for build in to_build:
            new.builds[build] = task = asyncio.create_task(self._build(new, build))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._named.pop(name, None)
        self._named[name] = new
        if former is not None:
            self._end(name, former)
        if len(self._named) > MAX_NAMES:
            oldest = next(iter(self._named))  # it has most likely lapsed or arrived
            self._end(oldest, self._named.pop(oldest))

    async def ready(self, name: str | None, timeout_s: float) -> None:
        """Wait until the sandboxes of this announcement, or of all, are ready; see `HostPool.ready`."""
        if asyncio.get_running_loop() is not self._loop:
            raise another_loop("a host")
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s is {timeout_s}; it must be positive")
        if name is not None and name not in self._named:
            raise InvalidRequest(f"nothing was announced under the name {name!r:.80}", hint="host.pool.announce first")
        try:
            async with asyncio.timeout(timeout_s):
                while self._missing(name):
                    self._pool.operation_ended.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._pool.operation_ended.wait(), _LOOK_EVERY_S)
        except TimeoutError:
            raise self._too_late(name, timeout_s) from self._last_failure(name)

    def requested(self, what: Recipe | Image, spec: SandboxSpec) -> None:
        """A lease requests a sandbox. If the pool does not know of its announcement yet, that expects one less."""
        if not self._tasks:
            return
        builds = (build for named in self._named.values() for build in named.builds)
        build = next((each for each in builds if each.key == (id(what), spec) and each.left), None)
        if build is not None:
            build.requested += 1

    def pending(self) -> int:
        """The number of expected leases whose recipes are not built yet."""
        return sum(build.left for named in self._named.values() for build in named.builds)

    def builds(self) -> Mapping[str, int]:
        """The recipes that are being built or wait for it, by announcement and stages; at most `MAX_SHOWN` rows."""
        rows = Counter(_label(name, build.recipe) for name, named in self._named.items() for build in named.builds)
        return dict(islice(rows.items(), MAX_SHOWN))

    def errors(self) -> Mapping[str, str]:
        """Why recipes could not be built, by announcement and stages; at most `MAX_SHOWN` rows."""
        return dict(islice(self._shown_errors(self._named.items()), MAX_SHOWN))

    async def close(self) -> None:
        """Cancel all builds and wait for their ends. Errors that `ready` has not raised are warned of."""
        for named in self._named.values():
            self._cancel(named)
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._named:
            self._end(*self._named.popitem())

    async def _build(self, named: _Named, build: _Build) -> None:
        """Build one recipe and announce its sandboxes; an error is kept for `ready` and the status."""
        error: DutyfreeError | None = None
        try:
            async with self._build_places:
                wanted = await self._find(build.recipe, build.spec)
            if time.monotonic() <= build.announcement.until_s and build.left:
                announcement, _ = announced = _with_goal(replace(build.announcement, count=build.left), wanted)
                self._pool.announce([announced])
                named.states[announcement.id] = announcement.state
        except DutyfreeError as failure:
            error = failure
        except asyncio.CancelledError:
            named.builds.pop(build, None)
            if all(build.key != other.key for each in self._named.values() for other in each.builds):
                self._ladders.withdraw(build.recipe, build.spec)
            raise
        except Exception as failure:  # a bug, or an input that cannot be read: it must not be lost with this task
            error = SubstrateFailed(f"an announced recipe could not be built: {failure!r}")
            error.__cause__ = failure
        if error is not None:
            named.errors.setdefault(_stages(build.recipe), []).append(error)
        named.builds.pop(build, None)
        self._pool.operation_ended.set()

    def _missing(self, name: str | None) -> int:
        """How many announced sandboxes are not ready yet, as far as they fit. Raises the error of a failed build."""
        unready, missing = self._pool.unready(), 0
        for named in self._chosen(name):
            if (error := next(chain.from_iterable(named.errors.values()), None)) is not None:
                named.raised = True
                raise error.with_traceback(None)
            for state in named.states.values():
                # Where stages are run inside of sandboxes, a recipe that does not build fails there.
                failure = self._pool.core.last_error(state)
                if isinstance(failure, CallerError) and not isinstance(failure, SandboxGone):
                    raise failure.with_traceback(None)
            missing += unready.get(named.group, 0) + len(named.builds)
        return missing

    def _too_late(self, name: str | None, timeout_s: float) -> DeadlineExceeded:
        chosen, unready = self._chosen(name), self._pool.unready()
        builds = sum(len(named.builds) for named in chosen)
        sandboxes = sum(unready.get(named.group, 0) for named in chosen)
        return DeadlineExceeded(
            f"not ready after {timeout_s:g} s; recipes not built: {builds}, sandboxes not ready: {sandboxes}",
            hint="give it more time (timeout_s=); host.pool.status() shows builds, operations and failures",
        )

    def _last_failure(self, name: str | None) -> DutyfreeError | None:
        """Why the last creation of an announced sandbox failed, if it did."""
        errors = (self._pool.core.last_error(state) for each in self._chosen(name) for state in each.states.values())
        return next((error for error in errors if error is not None), None)

    def _chosen(self, name: str | None) -> list[_Named]:
        """The announcement of this name; without a name all that have not lapsed."""
        if name is not None:
            return [self._named[name]] if name in self._named else []
        now_s = time.monotonic()
        return [each for each in self._named.values() if each.until_s >= now_s]

    def _end(self, name: str, named: _Named) -> None:
        """End an announcement that is not kept any more. Warn of its errors, unless `ready` has raised one."""
        self._cancel(named)
        if not named.raised:
            for label, error in self._shown_errors([(name, named)]):
                warnings.warn(f"an announced recipe was not built: {label}: {error}", RuntimeWarning, stacklevel=4)

    def _cancel(self, named: _Named) -> None:
        """Cancel the builds of an announcement. Those that another announcement or a lease wants go on."""
        for task in named.builds.values():
            task.cancel()

    @staticmethod
    def _shown_errors(chosen: Iterable[tuple[str, _Named]]) -> Iterator[tuple[str, str]]:
        for name, named in chosen:
            for stages, errors in named.errors.items():
                more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
                text = f"{type(errors[0]).__name__}: {errors[0]}"
                yield f"{name:.80}: {stages}", f"{text:.{_SHOWN_CHARACTERS}}{more}"


def _with_goal(announcement: Announcement, wanted: Wanted) -> tuple[Announcement, Wanted]:
    return replace(announcement, state=wanted.ladder.top), wanted


def _label(name: str, recipe: Recipe) -> str:
    return f"{name:.80}: {_stages(recipe)}"


def _stages(recipe: Recipe) -> str:
    """A recipe in a few words: it has no name."""
    return f"{', '.join([stage.name for stage in recipe.stages]) or recipe.base:.120}"
