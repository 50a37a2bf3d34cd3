"""How things end, and what may be tried again."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree import errors
from dutyfree.errors import (
    BuildFailed,
    CallerError,
    CapacityError,
    DeadlineExceeded,
    DutyfreeError,
    FileFailed,
    InfraFailed,
    InvalidRequest,
    LeaseLost,
    LinkFailed,
    SubstrateFailed,
    SubstrateUnavailable,
)
from dutyfree.model import Phase
from dutyfree.pool.outcomes import (
    MAX_CAUSES,
    OTHER,
    Outcome,
    OutcomeKind,
    Outcomes,
    before_anything_was_given,
    classify,
    retried,
)


def every_error(module: ModuleType) -> list[type[DutyfreeError]]:
    return [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, DutyfreeError)]


def an(kind: type[DutyfreeError]) -> DutyfreeError:
    if issubclass(kind, FileFailed):
        return kind("no", errno=2)
    if issubclass(kind, BuildFailed):
        return kind("no", stage="tests")
    return kind("no")


@pytest.mark.parametrize("kind", [each for each in every_error(errors) if each is not DutyfreeError])
def test_every_error_of_ours_is_exactly_one_outcome(kind: type[DutyfreeError]) -> None:
    outcome = classify(an(kind), Phase.CREATE)
    expected = {
        OutcomeKind.CALLER_ERROR: issubclass(kind, CallerError),
        OutcomeKind.CAPACITY: issubclass(kind, CapacityError),
        OutcomeKind.INFRA_FAILED: issubclass(kind, InfraFailed),
    }
    assert [each for each, is_so in expected.items() if is_so] == [outcome.kind]
    assert outcome == Outcome(outcome.kind, Phase.CREATE, kind.__name__)


def test_what_returns_is_an_observation() -> None:
    assert classify(None, Phase.EXECUTE) == Outcome(OutcomeKind.OBSERVATION, Phase.EXECUTE)


def test_a_strangers_exception_is_the_machinerys_unless_it_came_from_the_tenant() -> None:
    assert classify(ZeroDivisionError()) == Outcome(OutcomeKind.INFRA_FAILED, None, "ZeroDivisionError")
    theirs = classify(ZeroDivisionError(), stranger=OutcomeKind.CALLER_ERROR)
    assert theirs.kind is OutcomeKind.CALLER_ERROR
    ours = classify(LinkFailed("gone"), stranger=OutcomeKind.CALLER_ERROR)
    assert ours.kind is OutcomeKind.INFRA_FAILED


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
def test_whoever_gives_up_is_a_caller(error: BaseException) -> None:
    assert classify(error).kind is OutcomeKind.CALLER_ERROR


def test_the_worst_of_a_group_counts() -> None:
    group = BaseExceptionGroup("several", [InvalidRequest("a"), ExceptionGroup("in", [LinkFailed("b")])])
    assert classify(group, Phase.FORK) == Outcome(OutcomeKind.INFRA_FAILED, Phase.FORK, "LinkFailed")


@given(st.lists(st.tuples(st.sampled_from(OutcomeKind), st.none() | st.sampled_from(Phase), st.text(max_size=3))))
def test_nothing_that_was_counted_is_lost(counted: list[tuple[OutcomeKind, Phase | None, str]]) -> None:
    outcomes = Outcomes()
    for kind, phase, cause in counted:
        outcomes.count(Outcome(kind, phase, cause))
    assert outcomes.total == len(counted)
    assert outcomes.by_kind() == {kind: sum(each[0] is kind for each in counted) for kind in OutcomeKind}
    assert sum(count for _, count in outcomes.rows()) == len(counted)
    assert json.loads(json.dumps(outcomes.as_dict()))["kinds"] == outcomes.by_kind()


def test_the_number_of_causes_is_bounded() -> None:
    outcomes = Outcomes()
    for number in range(10 * MAX_CAUSES):
        outcomes.count(Outcome(OutcomeKind.INFRA_FAILED, None, f"Error{number}"))
    rows = outcomes.rows()
    assert len(rows) == MAX_CAUSES + 1
    assert dict(rows)[Outcome(OutcomeKind.INFRA_FAILED, None, OTHER)] == 9 * MAX_CAUSES


def test_a_block_is_counted_however_it_ends() -> None:
    outcomes = Outcomes()
    with outcomes.counted(Phase.RESET):
        pass
    with pytest.raises(SubstrateFailed), outcomes.counted(Phase.RESET):
        raise SubstrateFailed("no")
    assert [count for _, count in outcomes.rows()] == [1, 1]
    assert outcomes.by_kind()[OutcomeKind.INFRA_FAILED] == 1


def test_only_an_acquire_that_gave_nothing_is_safe() -> None:
    safe = {kind for kind in every_error(errors) if before_anything_was_given(an(kind))}
    assert CapacityError in safe
    assert {SubstrateFailed, LinkFailed, DeadlineExceeded} <= safe
    assert not safe & {SubstrateUnavailable, InvalidRequest, LeaseLost}
    assert not any(issubclass(kind, CallerError) for kind in safe)
    assert not before_anything_was_given(ValueError())


class Flaky:
    """Raises the given errors one after the other, and then returns."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.times_s: list[float] = []

    async def __call__(self) -> str:
        self.times_s.append(time.monotonic())
        if self.failures:
            raise self.failures.pop(0)
        return "done"


async def attempt(
    operation: Callable[[], object],
    attempts: int = 5,
    within_s: float = 5.0,
    first_delay_s: float = 0.001,
    outcomes: Outcomes | None = None,
) -> object:
    return await retried(
        operation,  # type: ignore[arg-type]
        attempts=attempts,
        safe=before_anything_was_given,
        within_s=within_s,
        jitter=random.Random(1),
        first_delay_s=first_delay_s,
        outcomes=outcomes,
    )


async def test_what_is_safe_is_tried_again() -> None:
    operation, outcomes = Flaky(CapacityError("full"), LinkFailed("broke")), Outcomes()
    assert await attempt(operation, outcomes=outcomes) == "done"
    assert len(operation.times_s) == 3
    assert outcomes.retries == 2


@pytest.mark.parametrize("error", [InvalidRequest("no"), SubstrateUnavailable("no"), LeaseLost("no"), ValueError("no")])
async def test_what_is_not_safe_is_not(error: Exception) -> None:
    operation = Flaky(error)
    with pytest.raises(type(error)) as caught:
        await attempt(operation)
    assert len(operation.times_s) == 1
    assert not hasattr(caught.value, "__notes__")


async def test_the_last_error_says_how_often_it_was_tried() -> None:
    operation = Flaky(*(CapacityError(f"full {number}") for number in range(9)))
    with pytest.raises(CapacityError, match="full 2") as caught:
        await attempt(operation, attempts=3)
    assert caught.value.__notes__ == ["it was tried 3 times"]


async def test_it_comes_back_when_it_was_told_to() -> None:
    operation = Flaky(CapacityError("full", retry_after_s=0.2))
    assert await attempt(operation) == "done"
    assert operation.times_s[1] - operation.times_s[0] >= 0.2


async def test_a_wait_past_the_end_is_not_begun() -> None:
    start_s = time.monotonic()
    with pytest.raises(CapacityError):
        await attempt(Flaky(CapacityError("full", retry_after_s=60.0)), within_s=1.0)
    assert time.monotonic() - start_s < 0.5


async def test_a_try_that_hangs_is_ended() -> None:
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(DeadlineExceeded):
        await attempt(hang, within_s=0.05)
    assert ended.is_set()


async def test_a_timeout_of_the_operations_own_is_left_alone() -> None:
    with pytest.raises(TimeoutError):
        await attempt(Flaky(TimeoutError()))


async def test_waits_grow_and_are_the_same_for_the_same_seed() -> None:
    waits: list[list[float]] = []
    for _ in range(2):
        operation = Flaky(*(LinkFailed("broke") for _ in range(4)))
        await attempt(operation, first_delay_s=0.02)
        times_s = operation.times_s
        waits.append([later - earlier for earlier, later in itertools.pairwise(times_s)])
    expected = [0.02 * 2**turn for turn in range(4)]
    for first, second, most in zip(*waits, expected, strict=True):
        assert first >= most / 2
        assert abs(first - second) < 0.05


async def test_cancelling_ends_the_retrying() -> None:
    operation = Flaky(*(CapacityError("full", retry_after_s=0.5) for _ in range(9)))
    task = asyncio.create_task(attempt(operation, within_s=60.0))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(operation.times_s) == 1


def test_a_capacity_error_is_as_it_was_before() -> None:
    error = CapacityError("full", hint="wait")
    assert (error.retry_after_s, str(error), error.retryable) == (None, "full (hint: wait)", True)
