"""What the probes found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dutyfree.model import Isolation


class Outcome(StrEnum):
    """How one probe ended."""

    PASSED = "passed"
    FAILED = "failed"
    RECORDED = "recorded"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Result:
    """One probe's end; `detail` says how a promise was broken, why it was not tried, or what was seen."""

    probe: str
    promise: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Every probe of the catalogue, each with an outcome: nothing is left out in silence."""

    substrate: str
    isolation: Isolation
    results: tuple[Result, ...]

    def of(self, outcome: Outcome) -> tuple[Result, ...]:
        """The results with one outcome."""
        return tuple(result for result in self.results if result.outcome is outcome)

    @property
    def ok(self) -> bool:
        """Whether no promise was broken (some may not have been tried)."""
        return not self.of(Outcome.FAILED)

    def as_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "substrate": self.substrate,
            "isolation": self.isolation.label,
            "ok": self.ok,
            "counts": {str(outcome): len(self.of(outcome)) for outcome in Outcome},
            "results": [asdict(result) for result in self.results],
        }

    def lines(self) -> Iterator[str]:
        """The report for people: a line per probe, then the sum."""
        for result in self.results:
            yield f"{result.outcome:8}  {result.probe}: {result.promise}"
            if result.detail:
                yield f"          {result.detail}"
        counts = ", ".join(f"{len(self.of(outcome))} {outcome}" for outcome in Outcome)
        yield f"{self.substrate} ({self.isolation.label}): {counts}"
