"""How acquires end: classified and counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from dutyfree.errors import CallerError, CapacityError, InfraFailed
from dutyfree.model import Phase
from dutyfree.values import dataclass

MAX_CAUSES: Final = 64
OTHER: Final = "other"
"""The cause under which further causes are counted after the first `MAX_CAUSES`."""


class OutcomeKind(StrEnum):
    """How an acquire ended, the worst kind last."""

    OBSERVATION = "observation"
    """It gave a result. A command that fails also gives a result."""
    CALLER_ERROR = "caller-error"
    CAPACITY = "capacity"
    INFRA_FAILED = "infra-failed"
    """The infrastructure failed. There is no result, so it must never count as a reward."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one acquire ended; for all kinds but observations, also the phase and the error."""

    kind: OutcomeKind
    phase: Phase | None = None
    cause: str = ""
    """The name of the error's class."""


def classify(error: BaseException, phase: Phase | None = None) -> Outcome:
    """The outcome of an acquire that raised `error` in `phase`.

    An exception that is not a DutyfreeError is a bug of the infrastructure, and counts as its failure. A cancellation
    comes from the caller, and counts as a caller error.
    """
    return Outcome(_kind(error), phase, type(error).__name__)


def _kind(error: BaseException) -> OutcomeKind:
    if isinstance(error, CapacityError):
        return OutcomeKind.CAPACITY
    if isinstance(error, InfraFailed):
        return OutcomeKind.INFRA_FAILED
    if isinstance(error, CallerError | asyncio.CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit):
        return OutcomeKind.CALLER_ERROR
    return OutcomeKind.INFRA_FAILED


class Outcomes:
    """Counts outcomes by kind, phase and cause. Only the first `MAX_CAUSES` causes have a count of their own."""

    def __init__(self) -> None:
        self._counts: Counter[Outcome] = Counter()
        self._causes: set[str] = set()

    def count(self, outcome: Outcome) -> None:
        """Count one outcome."""
        if outcome.cause and outcome.cause not in self._causes:
            if len(self._causes) >= MAX_CAUSES:
                outcome = Outcome(outcome.kind, outcome.phase, OTHER)
            else:
                self._causes.add(outcome.cause)
        self._counts[outcome] += 1

    @property
    def total(self) -> int:
        """The number of all outcomes."""
        return self._counts.total()

    def by_kind(self) -> Mapping[OutcomeKind, int]:
        """The number of outcomes of each kind; kinds without outcomes have 0."""
        totals = dict.fromkeys(OutcomeKind, 0)
        for outcome, count in self._counts.items():
            totals[outcome.kind] += count
        return totals

    def rows(self) -> list[tuple[Outcome, int]]:
        """Every count, in a fixed order."""
        return sorted(self._counts.items(), key=lambda row: (row[0].kind, row[0].phase or "", row[0].cause))

    def as_dict(self) -> dict[str, object]:
        """All counts, as JSON values."""
        rows = [
            {"kind": each.kind.value, "phase": each.phase and each.phase.value, "cause": each.cause, "count": count}
            for each, count in self.rows()
        ]
        kinds = {kind.value: count for kind, count in self.by_kind().items()}
        return {"kinds": kinds, "counts": rows}
