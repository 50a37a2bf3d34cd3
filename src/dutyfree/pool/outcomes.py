"""How acquires end: classified and counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dutyfree.errors import CallerError, CapacityError, InfraFailed
from dutyfree.model import Phase

MAX_CAUSES: Final = 64
OTHER: Final = "other"
"""What causes are counted as, once there are too many."""


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


def classify(error: BaseException, phase: Phase | None = None) -> Outcome:
    """The outcome of an acquire that raised `error` in `phase`.

    An exception that is not one of ours is a bug of the machinery, so it counts as the machinery's failure. A
    cancellation is the caller's own.
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
    """Counts outcomes by kind, phase and cause; of causes, the first `MAX_CAUSES` have a count of their own."""

    def __init__(self) -> None:
        self._counts: Counter[Outcome] = Counter()
        self._causes: set[str] = set()

    def count(self, outcome: Outcome) -> None:
        """One more of these."""
        if outcome.cause and outcome.cause not in self._causes:
            if len(self._causes) >= MAX_CAUSES:
                outcome = Outcome(outcome.kind, outcome.phase, OTHER)
            else:
                self._causes.add(outcome.cause)
        self._counts[outcome] += 1

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
        return {"kinds": kinds, "counts": rows}
