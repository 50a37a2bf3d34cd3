"""Finds the caveats of each condition, and those of the whole study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from dutyfree.measure.design.plan import NULL, plan
from dutyfree.measure.design.study import Condition, Study, Warmth
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.estimate import Caveat
from dutyfree.measure.stats.findings import Drift, Failures, Residue, Setting
from dutyfree.measure.stats.metrics import NS_PER_MS

PAGE_CACHE = "page-cache"


def of_study(results: Results, failures: Mapping[Condition, Failures]) -> Iterator[Caveat]:
    """The caveats of the whole study."""
    study = results.study
    if results.cut_short or len(results.trials) < results.planned:
        yield caveats.cut_short(len(results.trials), results.planned, results.cut_short)
    null = {arm.name for arm in study.arms if arm.substrate == NULL}
    is_live = results.bill is not None  # it has no null substrate, and evicts nothing: the reader knows
    if not is_live and not any(
        condition.arm in null and found.failed < found.attempted for condition, found in failures.items()
    ):
        yield caveats.no_floor()
    if not is_live and PAGE_CACHE not in study.evict and any(condition.warmth is Warmth.COLD for condition in failures):
        yield caveats.not_evicted()
    for arm, facts in results.arms.items():
        if why := facts.get("unavailable"):
            yield caveats.unavailable(arm, str(why))
    for condition, found in failures.items():
        if found.failed == found.attempted:
            yield caveats.nothing_completed(condition, found.attempted)


def of_conditions(
    results: Results,
    completed: Mapping[Condition, Sequence[Trial]],
    failures: Mapping[Condition, Failures],
    drifts: Mapping[Condition, Drift],
    residues: Mapping[Condition, Residue],
) -> dict[Condition, tuple[Caveat, ...]]:
    """The caveats of each condition in which a trial completed; they hold for every number of the condition."""
    planned = _planned(results.study)
    most = _most_by_setting(planned)
    null = {arm.name for arm in results.study.arms if arm.substrate == NULL}

    def doubts(condition: Condition, trials: Sequence[Trial]) -> Iterator[Caveat]:
        if results.arms.get(condition.arm, {}).get("emulated"):
            yield caveats.emulated(condition.arm)
        found = failures[condition]
        wanted = planned.get(condition, found.attempted)
        if found.attempted < wanted:
            yield caveats.fewer_trials(found.attempted, wanted, "the study was cut short")
        elif wanted < (others := most.get(Setting.of(condition), wanted)):
            yield caveats.fewer_trials(wanted, others, "the study gives this arm no more")
        if found.failed:
            yield caveats.failures(found.failed, found.attempted)
            yield from found.caveats
        if (late := _lateness(trials)) > caveats.LATENESS_LIMIT:
            yield caveats.overload(late)
        if condition.arm not in null:  # on the null substrate, unattributed time is the floor itself
            yield from residues[condition].caveats
        if condition in drifts:
            yield from drifts[condition].caveats

    return {condition: tuple(doubts(condition, trials)) for condition, trials in completed.items()}


def _planned(study: Study) -> Counter[Condition]:
    return Counter(trial.condition for block in plan(study) for trial in block.trials)


def _most_by_setting(planned: Counter[Condition]) -> dict[Setting, int]:
    most: dict[Setting, int] = {}
    for condition, count in planned.items():
        setting = Setting.of(condition)
        most[setting] = max(count, most.get(setting, 0))
    return most


def _lateness(trials: Sequence[Trial]) -> float:
    """The median lateness, relative to the trial's own duration."""
    if median(trial.late_ns for trial in trials) < caveats.LATENESS_LIMIT_MS * NS_PER_MS:
        return 0.0
    return median(trial.late_ns / max(1, trial.wall_ns) for trial in trials)
