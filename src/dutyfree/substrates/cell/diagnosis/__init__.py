"""Diagnoses why cells do not work on this machine: tries every step of a cell separately, and explains failures.

It runs only after a failure, or for `dutyfree doctor`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import CapacityError, DutyfreeError, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates.cell.diagnosis.causes import Cause, find_causes
from dutyfree.substrates.cell.diagnosis.facts import Facts, read_facts
from dutyfree.substrates.cell.diagnosis.remedies import merged
from dutyfree.substrates.cell.diagnosis.trial import Trial, run_trial

__all__ = ["Cause", "Diagnosis", "diagnose", "explain"]

MOST_CAUSES = 3
HELP = "`dutyfree doctor cell` tries each step of a cell and says which one fails"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all steps on this machine, and the causes of failures."""

    trial: Trial
    facts: Facts
    causes: tuple[Cause, ...]

    def remedy(self, cause: Cause) -> str:
        """The remedy for one cause, in one line; empty if no remedy is known."""
        return cause.remedy.line(self.facts.place)

    @property
    def blocking(self) -> tuple[Cause, ...]:
        """The causes that keep cells from working."""
        return tuple(cause for cause in self.causes if not cause.minor)


def diagnose(spawner: Path) -> Diagnosis:
    """Try every step. Takes less than a second, and leaves nothing. Raises SubstrateFailed if the trial cannot run."""
    facts = read_facts()
    trial = run_trial(spawner, as_root=facts.as_root)
    return Diagnosis(trial, facts, find_causes(trial, facts))


async def explain(error: DutyfreeError, spawner: Path) -> DutyfreeError:
    """The error for a cell or a spawner that could not be made, with the cause if it is a property of this machine.

    A CapacityError stays a CapacityError: it may disappear when other cells end.
    """
    try:
        found = await asyncio.to_thread(diagnose, spawner)
    except SubstrateFailed:
        return error
    # A minor cause explains the error only if the error names one of its steps.
    named = (cause for cause in found.causes if any(step in error.message for step in cause.steps))
    causes = found.blocking or tuple(named)
    if not causes:
        return error
    message = "; ".join(cause.what for cause in causes[:MOST_CAUSES])
    hint = merged(cause.remedy for cause in causes).line(found.facts.place) or HELP
    if isinstance(error, CapacityError):
        return CapacityError(f"no room for another cell: {message}", hint=hint)
    return SubstrateUnavailable(f"cells cannot be made here: {message}", hint=hint)
