"""How things end, and what may be tried again."""

from __future__ import annotations

import asyncio
import json
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree import errors
from dutyfree.errors import (
    BuildFailed,
    CallerError,
    CapacityError,
    DutyfreeError,
    FileFailed,
    InfraFailed,
    PortFailed,
)
from dutyfree.model import Phase
from dutyfree.pool.outcomes import (
    MAX_CAUSES,
    OTHER,
    Outcome,
    OutcomeKind,
    Outcomes,
    classify,
)


def every_error(module: ModuleType) -> list[type[DutyfreeError]]:
    return [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, DutyfreeError)]


def an(kind: type[DutyfreeError]) -> DutyfreeError:
    if issubclass(kind, FileFailed | PortFailed):
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


def test_an_exception_that_is_not_ours_is_the_machinerys() -> None:
    assert classify(ZeroDivisionError()) == Outcome(OutcomeKind.INFRA_FAILED, None, "ZeroDivisionError")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()])
def test_a_request_that_was_given_up_is_a_caller_error(error: BaseException) -> None:
    assert classify(error).kind is OutcomeKind.CALLER_ERROR


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


def test_a_capacity_error_is_as_it_was_before() -> None:
    error = CapacityError("full", hint="wait")
    assert (error.retry_after_s, str(error), error.retryable) == (None, "full (hint: wait)", True)
