"""How leases and actions end, counted; and the retrying of what is safe to try again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from dutyfree.errors import CallerError, CapacityError, DeadlineExceeded, InfraFailed
from dutyfree.model import Phase

MAX_CAUSES: Final = 64
OTHER: Final = "other"
"""What causes are counted as, once there are too many."""

Result = TypeVar("Result")


class OutcomeKind(StrEnum):
    """How something ended: exactly one of these, the worst last."""

    OBSERVATION = "observation"
    """It gave what it was asked for. A command that fails does that, too."""
    CALLER_ERROR = "caller-error"
    CAPACITY = "capacity"
    INFRA_FAILED = "infra-failed"
    """There is no result, good or bad: never a reward."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one thing ended and, for all but observations, where and by which error."""

    kind: OutcomeKind
    phase: Phase | None = None
    cause: str = ""
    """The name of the error's class."""


def classify(
    error: BaseException | None, phase: Phase | None = None, *, stranger: OutcomeKind = OutcomeKind.INFRA_FAILED
) -> Outcome:
    """The outcome of something that raised `error`, or returned, in `phase`.

    `stranger` is what an exception counts as that is not one of ours: out of the machinery it is the machinery's
    failure; out of a tenant's own block, it is the tenant's. Whoever cancels is a caller.
    """
    if error is None:
        return Outcome(OutcomeKind.OBSERVATION, phase)
    if isinstance(error, BaseExceptionGroup):
        parts = (classify(each, phase, stranger=stranger) for each in error.exceptions)
        return max(parts, key=lambda part: list(OutcomeKind).index(part.kind))
    return Outcome(_kind(error, stranger), phase, type(error).__name__)


def _kind(error: BaseException, stranger: OutcomeKind) -> OutcomeKind:
    if isinstance(error, CapacityError):
        return OutcomeKind.CAPACITY
    if isinstance(error, InfraFailed):
        return OutcomeKind.INFRA_FAILED
    if isinstance(error, CallerError | asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit):
        return OutcomeKind.CALLER_ERROR
    return stranger


class Outcomes:
    """Counts outcomes by kind, phase and cause; of causes, the first `MAX_CAUSES` have a count of their own."""

    def __init__(self) -> None:
        self._counts: Counter[Outcome] = Counter()
        self._causes: set[str] = set()
        self.retries = 0
        """How often something was tried again (see `retried`)."""

    def count(self, outcome: Outcome) -> None:
        """One more of these."""
        if outcome.cause and outcome.cause not in self._causes:
            if len(self._causes) >= MAX_CAUSES:
                outcome = Outcome(outcome.kind, outcome.phase, OTHER)
            else:
                self._causes.add(outcome.cause)
        self._counts[outcome] += 1

    @contextmanager
    def counted(self, phase: Phase, *, stranger: OutcomeKind = OutcomeKind.INFRA_FAILED) -> Iterator[None]:
        """Count how the block ends; its exception, if any, goes on."""
        try:
            yield
        except BaseException as error:
            self.count(classify(error, phase, stranger=stranger))
            raise
        self.count(classify(None, phase))

    @property
    def total(self) -> int:
        """All of them."""
        return self._counts.total()

    def by_kind(self) -> Mapping[OutcomeKind, int]:
        """How many ended in each way, ways that nothing ended in included."""
        totals = dict.fromkeys(OutcomeKind, 0)
        for outcome, count in self._counts.items():
            totals[outcome.kind] += count
        return totals

    def rows(self) -> list[tuple[Outcome, int]]:
        """Every count, in a fixed order."""
        return sorted(self._counts.items(), key=lambda row: (row[0].kind, row[0].phase or "", row[0].cause))

    def as_dict(self) -> dict[str, object]:
        """The same for JSON."""
        rows = [
            {"kind": each.kind.value, "phase": each.phase and each.phase.value, "cause": each.cause, "count": count}
            for each, count in self.rows()
        ]
        kinds = {kind.value: count for kind, count in self.by_kind().items()}
        return {"kinds": kinds, "retries": self.retries, "counts": rows}


def before_anything_was_given(error: BaseException) -> bool:
    """For `retried`: whether an acquire that raised this can be tried again, since nothing was given out by it.

    Never the test for an action: one that raised may have run.
    """
    return isinstance(error, CapacityError | InfraFailed) and error.retryable


async def retried(
    operation: Callable[[], Awaitable[Result]],
    *,
    attempts: int,
    safe: Callable[[BaseException], bool],
    within_s: float,
    jitter: random.Random,
    first_delay_s: float = 0.05,
    max_delay_s: float = 10.0,
    outcomes: Outcomes | None = None,
) -> Result:
    """The operation's result, tried again after errors that are `safe`, at most `attempts` times and `within_s`.

    Between two tries it waits: `first_delay_s` at first and twice as long each time, up to `max_delay_s`, less up to a
    half as `jitter` chooses, and never less than the error's own `retry_after_s`. A wait that would go past the end is
    not begun. Raises the last error, with a note of how often it was tried, and DeadlineExceeded for a try that is
    still under way at the end, which is cancelled.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    delay_s = first_delay_s
    tries = 0
    while True:
        tries += 1
        try:
            return await _within(operation, end_s)
        except Exception as error:
            wait_s = max(delay_s * (1 - jitter.random() / 2), getattr(error, "retry_after_s", None) or 0.0)
            if tries >= attempts or not safe(error) or loop.time() + wait_s >= end_s:
                if tries > 1:
                    error.add_note(f"it was tried {tries} times")
                raise
        if outcomes is not None:
            outcomes.retries += 1
        await asyncio.sleep(wait_s)
        delay_s = min(2 * delay_s, max_delay_s)


async def _within(operation: Callable[[], Awaitable[Result]], end_s: float) -> Result:
    limit = asyncio.timeout_at(end_s)
    try:
        async with limit:
            return await operation()
    except TimeoutError:
        if not limit.expired():  # it is the operation's own
            raise
        raise DeadlineExceeded("what was tried had not ended in time") from None
