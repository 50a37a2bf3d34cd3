"""Many sandboxes at once: groups for the rollouts of one prompt, and one rollout for each of many tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from dutyfree.checked import FilePath, function, path_text, whole, wrong
from dutyfree.client.action_log import logged_work
from dutyfree.client.box import Box
from dutyfree.client.host import Host, LeaseOptions, check_shared
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest
from dutyfree.leases.secret import conceal_lease
from dutyfree.model import Capability, Image, Recipe
from dutyfree.model.bill import duration
from dutyfree.values import dataclass

MAX_GROUP = 1024
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
Task = TypeVar("Task")
Value = TypeVar("Value")
Lease = Callable[[], AbstractAsyncContextManager[Box]]
Each = TypeVar("Each")


class Group(Sequence[Each]):
    """The leased boxes of a group, and the errors (`failures`) of those that could not be leased."""

    def __init__(self, boxes: Sequence[Each], failures: Sequence[DutyfreeError]) -> None:
        self._boxes = tuple(boxes)
        self.failures = tuple(failures)

    @overload
    def __getitem__(self, place: int) -> Each: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Each]: ...
    def __getitem__(self, place: int | slice) -> Each | Sequence[Each]:
        return self._boxes[place]

    def __len__(self) -> int:
        return len(self._boxes)

    def __iter__(self) -> Iterator[Each]:
        return iter(self._boxes)


def of_host(
    host: Host,
    image: Recipe | Image | str | None,
    n: int,
    prepare: Callable[[Box], Awaitable[None]] | None,
    at_least: int | None,
    lock: asyncio.Lock,
    lease: LeaseOptions,
) -> AbstractAsyncContextManager[Group[Box]]:
    """`Host.group`, from its arguments. Raises InvalidRequest."""
    lease = conceal_lease(lease)
    check_shared(lease)
    if prepare is not None:
        function("prepare", prepare)
    forks = Capability.FORK in host.capabilities
    return group(lambda: host.lease(image, **lease), n, prepare=prepare, at_least=at_least, forks=forks, lock=lock)


@asynccontextmanager
async def group(
    lease: Lease,
    count: int,
    *,
    prepare: Callable[[Box], Awaitable[None]] | None,
    at_least: int | None,
    forks: bool,
    lock: asyncio.Lock,
) -> AsyncIterator[Group[Box]]:
    """`count` boxes for the length of the block; see `Host.group`."""
    least = count if at_least is None else whole("at_least", at_least, least=1)
    whole("n", count, least=1, most=MAX_GROUP)
    if not 1 <= count <= MAX_GROUP or not 1 <= least <= count:
        raise InvalidRequest(f"a group of {count}, at least {least}: between 1 and {MAX_GROUP} are possible")
    async with AsyncExitStack() as held:
        if prepare is not None and forks:
            first = await held.enter_async_context(lease())
            await prepare(first)
            found = Group([first, *(await first.fork(count - 1) if count > 1 else ())], ())
        else:
            async with lock:
                found = await _leased(lease, count, held)
            if prepare is not None:
                await asyncio.gather(*(prepare(box) for box in found))
        if len(found) < least:
            error = found.failures[0]
            error.add_note(f"only {len(found)} of {count} sandboxes could be leased; at least {least} were required")
            raise error
        yield found


async def _leased(lease: Lease, count: int, held: AsyncExitStack) -> Group[Box]:
    leases = (held.enter_async_context(lease()) for _ in range(count))
    outcomes = await asyncio.gather(*leases, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, DutyfreeError):
            raise outcome
    boxes = [each for each in outcomes if isinstance(each, Box)]
    return Group(boxes, [each for each in outcomes if isinstance(each, DutyfreeError)])


@dataclass(frozen=True, slots=True)
class RolloutTiming:
    """Where the time of a rollout went, summed over its tries. What is neither work nor tax was the caller's."""

    wall_s: float = 0.0
    """From its first request for a sandbox to the end of its last lease, pauses between tries included."""
    ready_s: float = 0.0
    """From requests to sandboxes: the queue and, for a lease that is not warm, the creation. Part of the tax."""
    work_s: float = 0.0
    """Actions inside the sandbox."""
    tax_s: float = 0.0
    """What the infrastructure took of it: getting and returning sandboxes, and what it adds to each action."""
    leased_s: float = 0.0
    """How long it had a sandbox."""


@dataclass(frozen=True, slots=True)
class Rollout(Generic[Task, Value]):
    """The result of one task: a value, or an error. A failure of the infrastructure never counts as a value."""

    task: Task
    value: Value | None
    error: DutyfreeError | None
    tries: int
    """The number of sandboxes in which it was tried."""
    timing: RolloutTiming = RolloutTiming()

    @property
    def done(self) -> bool:
        """Whether there is a value."""
        return self.error is None


class Rollouts(list[Rollout[Task, Value]]):
    """The rollouts of one `map` in the order of its tasks, with what they have cost."""

    def __init__(self, rollouts: Iterable[Rollout[Task, Value]], wall_s: float) -> None:
        super().__init__(rollouts)
        self.wall_s = wall_s

    @property
    def failures(self) -> Counter[str]:
        """Rollouts without a value, by the party at fault and the error: `substrate/LinkFailed`."""
        return Counter(f"{each.error.party}/{type(each.error).__name__}" for each in self if each.error is not None)

    @property
    def summary(self) -> str:
        """What the rollouts have cost, in one line."""
        totals = {name: sum(getattr(each.timing, name) for each in self) for name in ("work_s", "tax_s", "leased_s")}
        work_ns, tax_ns, wall_ns = (round(each * 1e9) for each in (totals["work_s"], totals["tax_s"], self.wall_s))
        share = f" ({100 * tax_ns / work_ns:.1f} % of the work)" if work_ns else ""
        again = sum(each.tries for each in self) - len(self)
        failed = ", ".join(f"{count:,} x {cause}" for cause, count in self.failures.most_common())
        return (
            f"{sum(each.done for each in self):,} of {len(self):,} rollouts done, work {duration(work_ns)}, "
            f"tax {duration(tax_ns)}{share}, wall {duration(wall_ns)}, "
            f"{totals['leased_s'] / self.wall_s if self.wall_s else 0.0:.1f} at once, "
            f"{again:,} tried again, {'failed: ' + failed if failed else 'no failures'}"
        )


async def roll_out(
    tasks: Iterable[Task],
    work: Callable[[Box, Task], Awaitable[Value]],
    lease: Callable[[Task], AbstractAsyncContextManager[Box]],
    *,
    concurrency: int,
    retries: int,
    on_progress: Callable[[int, int], Any] | None,
    logs: FilePath | None = None,
) -> Rollouts[Task, Value]:
    """One rollout for each task; see `Host.map`."""
    whole("concurrency", concurrency, least=1)
    whole("retries", retries, least=0)
    function("work", work)
    if on_progress is not None:
        function("on_progress", on_progress)
    if not isinstance(tasks, Iterable):
        raise wrong("tasks", tasks, "a list of tasks")
    todo = list(tasks)
    directory = None if logs is None else Path(path_text("logs", logs))
    places, done, started_s = asyncio.Semaphore(concurrency), 0, time.monotonic()

    async def one(number: int, task: Task) -> Rollout[Task, Value]:
        nonlocal done
        own = work if directory is None else logged_work(work, directory / f"{number:05d}.log")
        async with places:
            outcome = await _tried(task, own, lease, retries)
        done += 1
        if on_progress is not None:
            on_progress(done, len(todo))
        return outcome

    try:
        async with asyncio.TaskGroup() as running:
            started = [running.create_task(one(number, task)) for number, task in enumerate(todo)]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__  # the caller gets the exception itself, not a group
    rollouts = Rollouts((each.result() for each in started), time.monotonic() - started_s)
    logging.getLogger("dutyfree").info("map: %s", rollouts.summary)
    return rollouts


async def _tried(
    task: Task,
    work: Callable[[Box, Task], Awaitable[Value]],
    lease: Callable[[Task], AbstractAsyncContextManager[Box]],
    retries: int,
) -> Rollout[Task, Value]:
    tries, stopwatch = 0, _Stopwatch()
    while True:
        tries += 1
        try:
            async with stopwatch.leased(lease(task)) as box:
                value = await work(box, task)
            return Rollout(task, value, None, tries, stopwatch.timing())
        except DutyfreeError as error:
            # Each try has a new sandbox, so that nothing from a failed try can influence the next one.
            if tries > retries or not error.retryable:
                return Rollout(task, None, error, tries, stopwatch.timing())
            failure = error
        if isinstance(failure, CapacityError):
            await asyncio.sleep(min(failure.retry_after_s or _PAUSE_S, _LONGEST_PAUSE_S))


class _Stopwatch:
    """Times the tries of one rollout."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._ready_s = self._work_s = self._tax_s = self._leased_s = 0.0

    @asynccontextmanager
    async def leased(self, lease: AbstractAsyncContextManager[Box]) -> AsyncIterator[Box]:
        """The lease, timed."""
        begun_s, left_s, box = time.monotonic(), None, None
        try:
            async with lease as box:
                ready_s = time.monotonic()
                self._ready_s += ready_s - begun_s
                try:
                    yield box
                finally:
                    left_s = time.monotonic()
                    self._leased_s += left_s - ready_s
        finally:
            ended_s = time.monotonic()
            if box is None or left_s is None:  # no sandbox: the whole wait was tax
                self._ready_s += ended_s - begun_s
                self._tax_s += ended_s - begun_s
            else:
                spent = box._grant.spent
                self._work_s += spent.work_ns / 1e9
                self._tax_s += ready_s - begun_s + (spent.tax_ns - spent.wait_ns) / 1e9 + ended_s - left_s

    def timing(self) -> RolloutTiming:
        """The times so far."""
        wall_s = time.monotonic() - self._started_s
        return RolloutTiming(wall_s, self._ready_s, self._work_s, self._tax_s, self._leased_s)
