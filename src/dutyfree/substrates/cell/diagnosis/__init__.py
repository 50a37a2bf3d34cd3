"""Why cells do not work here, and what mends it: every step of a cell is tried by itself, and the failures explained.

Nothing of this runs while cells work.
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
    """What was tried here, and what it means."""

    trial: Trial
    facts: Facts
    causes: tuple[Cause, ...]

    def remedy(self, cause: Cause) -> str:
        """What mends one cause, in one line; empty where nothing is known to."""
        return cause.remedy.line(self.facts.place)

    @property
    def blocking(self) -> tuple[Cause, ...]:
        """What keeps cells from working."""
        return tuple(cause for cause in self.causes if not cause.minor)


def diagnose(spawner: Path) -> Diagnosis:
    """Try every step. Takes a fraction of a second, leaves nothing. Raises SubstrateFailed if nothing can be tried."""
    facts = read_facts()
    trial = run_trial(spawner, as_root=facts.as_root)
    return Diagnosis(trial, facts, find_causes(trial, facts))


async def explain(error: DutyfreeError, spawner: Path) -> DutyfreeError:
    """An error for what kept a cell, or the spawner, from being made: with its cause, if that lies in this machine.

    One that may go away by itself, because cells end, stays a CapacityError.
    """
    try:
        found = await asyncio.to_thread(diagnose, spawner)
    except SubstrateFailed:
        return error
    # What cells can do without is to blame only where it is the very thing that failed.
    named = (cause for cause in found.causes if any(step in error.message for step in cause.steps))
    causes = found.blocking or tuple(named)
    if not causes:
        return error
    message = "; ".join(cause.what for cause in causes[:MOST_CAUSES])
    hint = merged(cause.remedy for cause in causes).line(found.facts.place) or HELP
    if isinstance(error, CapacityError):
        return CapacityError(f"no room for another cell: {message}", hint=hint)
    return SubstrateUnavailable(f"cells cannot be made here: {message}", hint=hint)
