"""The report of a run of checks or probes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    KNOWN_GAP = "known gap"
    """The check failed, and `gaps.py` lists the failure with its reason."""
    RECORDED = "recorded"
    """Nothing is promised; the report says what the probe saw."""
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one check or probe; `reason` says why it failed or was not run, or what was noted on the way."""

    id: str
    promise: str
    outcome: Outcome
    reason: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All checks or probes with their outcomes, including those that were not run."""

    substrate: str
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether at least one check passed and none failed."""
        counts = Counter(result.outcome for result in self.results)
        return counts[Outcome.FAILED] == 0 and counts[Outcome.PASSED] > 0

    def having(self, outcome: Outcome) -> tuple[Result, ...]:
        """The results with this outcome."""
        return tuple(result for result in self.results if result.outcome is outcome)

    def table(self) -> str:
        """The report as text: one line for each result, then the recorded, not run, known-gap and failed ones again."""
        width = max((len(result.id) for result in self.results), default=0)
        lines = [
            f"{result.outcome.value:<9}  {result.id:<{width}}  {result.duration_s:6.2f} s  {result.promise}"
            for result in self.results
            if result.outcome is not Outcome.NOT_RUN
        ]
        for outcome in (Outcome.RECORDED, Outcome.NOT_RUN, Outcome.KNOWN_GAP, Outcome.FAILED):
            found = self.having(outcome)
            if found:
                lines += ["", f"{outcome.value} ({len(found)}):"]
                lines += [f"  {result.id:<{width}}  {result.reason}" for result in found]
        shown = [outcome for outcome in Outcome if outcome is not Outcome.RECORDED or self.having(outcome)]
        counts = ", ".join(f"{len(self.having(outcome))} {outcome.value}" for outcome in shown)
        return "\n".join([*lines, "", f"{self.substrate}: {counts}"])

    def as_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "substrate": self.substrate,
            "ok": self.ok,
            "counts": {outcome.value: len(self.having(outcome)) for outcome in Outcome},
            "checks": [
                {
                    "id": result.id,
                    "promise": result.promise,
                    "outcome": result.outcome.value,
                    "reason": result.reason,
                    "duration_s": round(result.duration_s, 4),
                }
                for result in self.results
            ],
        }
