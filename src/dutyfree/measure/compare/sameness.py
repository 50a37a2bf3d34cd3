"""Checks whether two results can be compared, and finds what else differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.estimate import Caveat

MOST_FACTS: Final = 6
_SHOWN: Final = 60
_STUDY_FIELDS: Final = ("seed", "resources", "trial_timeout_s", "evict", "keep_think_time")


def same_plan(before: Results, after: Results) -> bool:
    """Whether equal block numbers mean equal settings and actions on both sides."""
    ours, theirs = before.study, after.study
    return (ours.seed, ours.grids) == (theirs.seed, theirs.grids) and _limits(before) == _limits(after)


def refuse_other_actions(before: Results, after: Results) -> None:
    """Raises InvalidRequest if trials of one plan ran different actions: the workload was changed."""
    ran = {trial.number: [action.name for action in trial.actions] for trial in before.trials if trial.completed}
    for trial in after.trials:
        names = [action.name for action in trial.actions]
        if trial.completed and ran.get(trial.number, names) != names:
            raise InvalidRequest(
                f"workload {trial.condition.workload!r} is not the same on both sides: "
                f"in trial {trial.number} other actions were run",
                hint="compare results of the same workload",
            )


def differences(before: Results, after: Results) -> Iterator[Caveat]:
    """Other differences between the two results that may explain a difference in time."""
    if facts := list(_differing(before.host, after.host)):
        yield caveats.different_hosts(_few(facts))
    for arm in before.arms.keys() & after.arms.keys():
        if facts := list(_differing(before.arms[arm], after.arms[arm])):
            yield caveats.different_arms(arm, _few(facts))
    fields = [name for name in _STUDY_FIELDS if getattr(before.study, name) != getattr(after.study, name)]
    if fields:
        yield caveats.different_studies([name.replace("_", " ") for name in fields])
    ours, theirs = _action_names(before), _action_names(after)
    for workload in ours.keys() & theirs.keys():
        if lonely := sorted(ours[workload] ^ theirs[workload]):
            yield caveats.different_actions(workload, _few(lonely))
    for side, results in (("before", before), ("after", after)):
        for cut in cut_short(results):
            yield Caveat(cut.code, f"{side}: {cut.text}")


def cut_short(results: Results) -> Iterator[Caveat]:
    """Whether trials are missing."""
    if results.cut_short or len(results.trials) < results.planned:
        yield caveats.cut_short(len(results.trials), results.planned, results.cut_short)


def only_arms(results: Results, names: Mapping[str, str]) -> Results:
    """The results of these arms alone, under other names. Raises InvalidRequest for an arm that the study has not."""
    known = {arm.name: arm for arm in results.study.arms}
    for arm in names:
        if arm not in known:
            raise InvalidRequest(f"there is no arm {arm!r:.80}", hint=f"there are: {', '.join(known)}")
    arms = tuple(replace(known[arm], name=name) for arm, name in names.items())
    grids = (replace(grid, arms=tuple(names[arm] for arm in grid.arms if arm in names)) for grid in results.study.grids)
    trials = tuple(
        replace(trial, condition=replace(trial.condition, arm=names[trial.condition.arm]))
        for trial in results.trials
        if trial.condition.arm in names
    )
    facts = {names[arm]: each for arm, each in results.arms.items() if arm in names}
    study = replace(results.study, arms=arms, grids=tuple(grids))
    return replace(results, study=study, arms=facts, trials=trials, planned=len(trials))


def _limits(results: Results) -> list[tuple[str, int | None, int | None]]:
    """The limits of the arms, which also decide which trials a block has."""
    return sorted((arm.name, arm.max_trials, arm.max_length) for arm in results.study.arms)


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            yield f"{name}: {str(ours.get(name))[:_SHOWN]} / {str(theirs.get(name))[:_SHOWN]}"


def _few(facts: list[str]) -> list[str]:
    return facts if len(facts) <= MOST_FACTS else [*facts[:MOST_FACTS], f"and {len(facts) - MOST_FACTS} more"]


def _action_names(results: Results) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for trial in results.trials:
        names.setdefault(trial.condition.workload, set()).update(action.name for action in trial.actions)
    return names
