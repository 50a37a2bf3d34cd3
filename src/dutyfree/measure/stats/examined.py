"""Sorts the trials of a study by condition, and checks each condition: failures, drift, residue, caveats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Condition, Warmth
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.stats import doubts
from dutyfree.measure.stats.conditions import failures
from dutyfree.measure.stats.drift import drift
from dutyfree.measure.stats.estimate import Caveat
from dutyfree.measure.stats.findings import Drift, Failures, Residue
from dutyfree.measure.stats.residue import residue


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything is by condition: sorted by workload, length, warmth and concurrency, then by the order of the arms."""

    tried: Mapping[Condition, Sequence[Trial]]
    """All trials, however they ended."""
    completed: Mapping[Condition, Sequence[Trial]]
    """The trials whose times may be used; conditions without such a trial are left out, here and below."""
    failures: Mapping[Condition, Failures]
    """For every condition that was tried."""
    drifts: Mapping[Condition, Drift]
    residues: Mapping[Condition, Residue]
    doubts: Mapping[Condition, tuple[Caveat, ...]]
    """The caveats that hold for every number of a condition."""

    def doubts_at(self, condition: Condition, lengths: Iterable[int]) -> tuple[Caveat, ...]:
        """The caveats of the condition at these lengths, each once."""
        found = (each for length in lengths for each in self.doubts.get(replace(condition, length=length), ()))
        return tuple(dict.fromkeys(found))


def examine(results: Results) -> Examined:
    """Sort the trials, and find their caveats."""
    trials = _by_condition(results)
    completed = {condition: kept for condition, each in trials.items() if (kept := [t for t in each if t.completed])}
    failed = {condition: failures(condition, each) for condition, each in trials.items()}
    drifts = {
        condition: found for condition, each in completed.items() if (found := drift(condition, each)) is not None
    }
    residues = {condition: residue(condition, each) for condition, each in completed.items()}
    doubted = doubts.of_conditions(results, completed, failed, drifts, residues)
    return Examined(trials, completed, failed, drifts, residues, doubted)


def choose_workload(serial: Sequence[Condition], workload: str | None, warmth: Warmth) -> str:
    """`workload`, or by default the one with the longest trajectory, the last of several.

    `serial`: the conditions, one sandbox at a time, in which a trial completed. Raises InvalidRequest if there is none
    of the workload and warmth.
    """
    longest: dict[str, int] = {}
    for each in serial:
        if each.warmth is warmth:
            longest[each.workload] = max(each.length, longest.get(each.workload, 0))
    if not longest or (workload is not None and workload not in longest):
        wanted = f"of {workload} " if workload is not None else ""
        stages = sorted({str(each.warmth) for each in serial})
        hint = f"there are: {', '.join(longest or stages)}" if serial else None
        raise InvalidRequest(f"no {warmth} trial {wanted}completed, one at a time, in this study", hint=hint)
    return workload if workload is not None else max(reversed(longest), key=longest.__getitem__)


def _by_condition(results: Results) -> Mapping[Condition, Sequence[Trial]]:
    arms = [arm.name for arm in results.study.arms]
    found: dict[Condition, list[Trial]] = {}
    for trial in results.trials:
        found.setdefault(trial.condition, []).append(trial)

    def place(condition: Condition) -> tuple[object, ...]:
        setting = (condition.workload, condition.length, list(Warmth).index(condition.warmth), condition.concurrency)
        return (*setting, arms.index(condition.arm))

    return {condition: found[condition] for condition in sorted(found, key=place)}
