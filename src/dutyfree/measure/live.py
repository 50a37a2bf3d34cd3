"""Records the leases of a real training run as trials, so that `dutyfree report` can read them like a study.

A trial's clock is stopped between actions: the time of an agent's model is not infrastructure. Leases with overlapping
actions are left out, and counted, because their times do not add up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from dutyfree.client.host_pool import HostPool
from dutyfree.measure.design.plan import PlannedTrial
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth
from dutyfree.measure.results.host import host_facts
from dutyfree.measure.results.records import ActionRecord, Trial, TrialOutcome
from dutyfree.measure.results.writer import ResultsWriter
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase, Span
from dutyfree.pool.grants import Grant
from dutyfree.pool.metrics import HIT
from dutyfree.pool.routing import COLD_RUNG
from dutyfree.trace import account

ACTION: Final = (Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE)
_SYNC_EVERY: Final = 64
"""The number of leases that may be lost if the process is killed."""


class LeaseJournal:
    """Writes every lease that ends within its `with` block to a results directory, and the bill of the block.

    Leases are grouped by owner, which takes the place of a workload, and by their number of actions. Raises
    InvalidRequest for a directory that holds something already.
    """

    def __init__(self, path: str | os.PathLike[str], pool: HostPool, *, name: str = "leases") -> None:
        status = pool.status()
        self._arm = status.substrate
        self._pool = pool
        study = Study(name, (Arm(self._arm, self._arm),), (Grid(1, ("leases",)),))
        self._writer = ResultsWriter(path, study, host=host_facts(), workloads={})
        self._before = pool.bill()
        self._count = 0
        self.left_out = 0
        """The number of leases that are no trials: they had no actions, or overlapping ones. The bill has them all."""

    def __enter__(self) -> Self:
        self._writer.__enter__()
        self._writer.arm(self._arm, {"substrate": self._arm})
        self._before = self._pool.bill()
        self._pool.on_end(self.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.on_end(None)
        self._writer.bill(self._pool.bill() - self._before)
        self._writer.stop("")
        self._writer.__exit__(kind, error, trace)

    def note(self, grant: Grant) -> None:
        """Record a lease that ended."""
        trial = trial_of(grant, self._count, self._arm)
        if trial is None:
            self.left_out += 1
            return
        self._count += 1
        planned = PlannedTrial(trial.number, trial.block, trial.condition, 0)
        self._writer.begin(planned, sequence=self._writer.next_sequence(), late_ns=0, evicted={})
        start_ns = 0
        for action in trial.actions:
            self._writer.action(trial.number, start_ns, action)
            start_ns += action.latency_ns
        is_due = self._count % _SYNC_EVERY == 0
        self._writer.end(trial, sandbox=grant.member.id, sync=is_due)
        if is_due:
            self._writer.bill(self._pool.bill() - self._before)


def trial_of(grant: Grant, number: int, arm: str) -> Trial | None:
    """The lease as a trial; None if it had no actions, or overlapping actions."""
    spans = grant.spans.spans
    actions = [ActionRecord("action", ActionKind.COMMAND, *parts) for parts in _actions(spans)]
    ledger = account(spans, grant.start_ns, grant.end_ns)
    by_phase = {**ledger.by_phase, Phase.UNATTRIBUTED: 0}
    wall_ns = sum(by_phase.values())
    if not actions or sum(each.latency_ns for each in actions) > wall_ns:
        return None
    # A lease that found no idle sandbox may have got one that another lease returned, and not a new one.
    is_whole = grant.rung in (HIT, COLD_RUNG)
    warmth = Warmth.COLD if grant.spent.is_cold else Warmth.DEPENDENCIES if is_whole else Warmth.BASE
    return Trial(
        number=number,
        sequence=number,
        block=number,
        condition=Condition(arm, grant.lease.owner or "leases", len(actions), warmth),
        outcome=TrialOutcome.COMPLETED,
        wall_ns=wall_ns,
        first_observation_ns=min(wall_ns, by_phase[Phase.QUEUE] + actions[0].latency_ns),
        by_phase=by_phase,
        actions=tuple(actions),
    )


def _actions(spans: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
    """The three parts of each action, which its sandbox reports one after the other."""
    place = 0
    while place + len(ACTION) <= len(spans):
        three = spans[place : place + len(ACTION)]
        if tuple(span.phase for span in three) == ACTION:
            dispatch, execute, observe = (span.end_ns - span.start_ns for span in three)
            yield dispatch, execute, observe
            place += len(ACTION)
        else:
            place += 1
