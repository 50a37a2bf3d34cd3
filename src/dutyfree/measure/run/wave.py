"""Many trajectories of one arm at once: an open loop, so that a slow substrate does not reduce its own load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.measure.design.plan import PlannedTrial
from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.results.records import ActionRecord, Trial, TrialOutcome
from dutyfree.measure.run import arrivals
from dutyfree.measure.run.trial import Attempt, TrialLog
from dutyfree.model import Phase
from dutyfree.trace import now_ns

PREPARED_AT_ONCE: Final = 4
OVERLOAD: Final = "overload"


class ServiceTimes:
    """How long one trajectory takes on an arm when it runs alone: the mean of completed trials at concurrency 1."""

    def __init__(self, earlier: Iterable[Trial] = ()) -> None:
        self._totals: dict[tuple[str, str, int, Warmth], tuple[int, int]] = {}
        for trial in earlier:
            self.note(trial)

    def note(self, trial: Trial) -> None:
        """Add a trial that ended."""
        if trial.completed and trial.condition.concurrency == 1:
            count, total_ns = self._totals.get(_key(trial.condition), (0, 0))
            self._totals[_key(trial.condition)] = (count + 1, total_ns + trial.wall_ns)

    def mean_ns(self, condition: Condition) -> tuple[int, int] | None:
        """The mean for this arm, workload, length and warmth, and its number of trials; None if there is none yet."""
        count, total_ns = self._totals.get(_key(condition), (0, 0))
        return (total_ns // count, count) if count else None


@dataclass(frozen=True, slots=True)
class Arrival:
    """One trial of a wave."""

    planned: PlannedTrial
    attempt: Attempt


async def run_wave(
    wave: Sequence[Arrival],
    rate_per_s: float,
    log: TrialLog,
    next_sequence: Callable[[], int],
    on_trial: Callable[[Trial, Attempt], None],
    evicted: Mapping[str, Any],
) -> None:
    """Start the trials of a wave at this rate, and call `on_trial` for each when it ends.

    The sandboxes of warm trials are prepared before the first trial arrives. No sandbox is left, also if this is
    cancelled, or if `log` or `on_trial` raises.
    """
    concurrency = wave[0].planned.condition.concurrency
    times_ns = arrivals.arrivals_ns(wave[0].planned.seed, len(wave), rate_per_s)
    most = arrivals.OUTSTANDING * concurrency

    async def arrive(index: int, intended_ns: int) -> None:
        attempt = wave[index].attempt
        on_trial(await attempt.measure(next_sequence(), intended_ns=intended_ns, evicted=evicted), attempt)

    def refuse(index: int, intended_ns: int) -> None:
        planned, sequence, late_ns = wave[index].planned, next_sequence(), max(0, now_ns() - intended_ns)
        log.begin(planned, sequence=sequence, late_ns=late_ns, evicted=evicted)
        on_trial(refused_trial(planned, sequence, late_ns, most), wave[index].attempt)

    try:
        await _prepare([arrival.attempt for arrival in wave])
        await arrivals.drive(times_ns, most, arrive, refuse)
    finally:
        await asyncio.gather(*(arrival.attempt.discard() for arrival in wave))


def refused_trial(planned: PlannedTrial, sequence: int, late_ns: int, most: int) -> Trial:
    """The failed trial of a trajectory that was refused because too many were running."""
    cause = f"{OVERLOAD}: {most} were under way already"
    return failed_trial(planned, sequence, cause, late_ns=late_ns, phase=Phase.QUEUE)


def failed_trial(
    planned: PlannedTrial, sequence: int, cause: str, *, late_ns: int = 0, phase: Phase | None = None
) -> Trial:
    """A trial of which nothing was measured, because of the infrastructure."""
    return Trial(
        number=planned.number,
        sequence=sequence,
        block=planned.block,
        condition=planned.condition,
        outcome=TrialOutcome.INFRA_FAILED,
        wall_ns=0,
        first_observation_ns=None,
        by_phase=dict.fromkeys(Phase, 0),
        late_ns=late_ns,
        failed_phase=phase,
        cause=cause,
    )


class Unrecorded:
    """A log that records nothing, for calibration trials."""

    def begin(self, planned: PlannedTrial, *, sequence: int, late_ns: int, evicted: Mapping[str, Any]) -> None:
        """Not recorded."""

    def action(self, trial: int, start_ns: int, action: ActionRecord) -> None:
        """Not recorded."""

    def span(self, trial: int, phase: Phase, name: str, start_ns: int, end_ns: int) -> None:
        """Not recorded."""

    def end(self, trial: Trial, *, sandbox: str, sync: bool = True) -> None:
        """Not recorded."""


async def _prepare(attempts: Sequence[Attempt]) -> None:
    """Prepare a few at a time: warm sandboxes load a machine as much as cold ones."""
    slots = asyncio.Semaphore(PREPARED_AT_ONCE)

    async def prepare(attempt: Attempt) -> None:
        async with slots:
            await attempt.prepare()

    tasks = [asyncio.get_running_loop().create_task(prepare(attempt)) for attempt in attempts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(condition: Condition) -> tuple[str, str, int, Warmth]:
    return condition.arm, condition.workload, condition.length, condition.warmth
