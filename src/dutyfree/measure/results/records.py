"""Trials and results as values. Readers and analyses of results use only these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dutyfree.measure.design.study import Condition, Study, Warmth
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Bill, Phase


class TrialOutcome(StrEnum):
    """How a trial ended. Only those that completed are timed; all of them are counted."""

    COMPLETED = "completed"
    UNFAITHFUL = "unfaithful"
    """An action did not return the expected observation."""
    INFRA_FAILED = "infra-failed"
    TIMED_OUT = "timed-out"
    """The trial reached its own time limit. An action that reaches its limit makes the trial unfaithful."""
    NOT_COLD = "not-cold"
    """The sandbox held something of an earlier trial, or the cache was not evicted."""


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One action of a trial. The three parts add up to its latency."""

    name: str
    kind: ActionKind
    dispatch_ns: int
    execute_ns: int
    observe_ns: int

    @property
    def latency_ns(self) -> int:
        """From the call until the caller has the observation."""
        return self.dispatch_ns + self.execute_ns + self.observe_ns

    @property
    def tax_ns(self) -> int:
        """The time that the substrate added to the command's own time."""
        return self.dispatch_ns + self.observe_ns


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured attempt. `by_phase` adds up to `wall_ns`, the residue `unattributed` included."""

    number: int
    """The number in the plan, unique in the study; `sequence` is the position in the order in which trials began."""
    sequence: int
    block: int
    condition: Condition
    outcome: TrialOutcome
    wall_ns: int
    """From the start of creation (or, for a warm one, of the remaining set-up) to the end of destruction."""
    first_observation_ns: int | None
    """From the start to the end of the first action: the cold start, set-up included."""
    by_phase: Mapping[Phase, int]
    steps: Mapping[str, int] = field(default_factory=dict)
    """Time by the substrate's own boundaries within creation and destruction, "create/pull" for instance."""
    actions: tuple[ActionRecord, ...] = ()
    late_ns: int = 0
    """The delay between the planned start and the start (open loop); not part of `wall_ns`."""
    failed_phase: Phase | None = None
    cause: str = ""
    """If the trial did not complete: the error's class and message, or the action and what was wrong with it."""

    @property
    def completed(self) -> bool:
        """Whether its times may be used."""
        return self.outcome is TrialOutcome.COMPLETED

    @property
    def response_ns(self) -> int:
        """From the planned start to the end: how long a caller under load waits."""
        return self.late_ns + self.wall_ns


@dataclass(frozen=True, slots=True)
class Results:
    """A study, the machine, and the trials in the order in which they began."""

    study: Study
    host: Mapping[str, Any]
    """Facts of the machine: kernel, cpu, cores, memory, cgroup version, file system, versions; JSON values."""
    arms: Mapping[str, Mapping[str, Any]]
    """Facts of each arm: version of its engine, isolation, "emulated": true, "unavailable": why."""
    trials: tuple[Trial, ...]
    planned: int
    """The number of planned trials; fewer were run if a time limit or an interrupt cut the study short."""
    cut_short: str = ""
    """Why the study was cut short; empty if it was not."""
    references: Mapping[int, int] = field(default_factory=dict)
    """By block, in nanoseconds: how long a bare process took just before the block. It shows drift of the machine."""
    bill: Bill | None = None
    """The bill of a live run, whose trials are its leases; None for a study."""

    @property
    def main_warmth(self) -> Warmth:
        """The warmth of what is shown first: cold for a study, that of the most leases for a live run."""
        counts = Counter(trial.condition.warmth for trial in self.trials if trial.completed)
        return counts.most_common(1)[0][0] if self.bill is not None and counts else Warmth.COLD
