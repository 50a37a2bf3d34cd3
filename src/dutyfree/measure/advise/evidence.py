"""The numbers of a study that are needed to choose between its arms.

They are all taken from the trials of one setting (one workload, length and stage, one sandbox at a time), so that arms
are compared on the same trajectories, and so that a reader can find the numbers in the study's report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, Final

import numpy as np

from dutyfree.choose.decision import Candidate
from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.plan import NULL
from dutyfree.measure.design.study import Arm, Condition, Warmth
from dutyfree.measure.results.records import Results, Trial
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.conditions import means_by_block
from dutyfree.measure.stats.estimate import Caveat, Estimate
from dutyfree.measure.stats.examined import Examined, choose_workload
from dutyfree.measure.stats.findings import Setting
from dutyfree.measure.stats.metrics import Metric
from dutyfree.measure.stats.quantiles import quantile
from dutyfree.model import Isolation, Phase

NS_PER_S: Final = 1e9
MS_PER_S: Final = 1e3
_WALLS: Final = {each.label: each for each in Isolation}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measured numbers of one arm, with intervals. Times are in seconds."""

    candidate: Candidate
    acquire: Estimate
    """Median time from the start until the first action can run, including the remaining set-up."""
    action_overhead: Estimate
    """Median over sandboxes of the mean of dispatch + observe over a sandbox's actions."""
    slowdown: Estimate
    """Execution time divided by that of `fastest`, over the blocks that both completed. If the interval includes 1, the
    decision uses 1: an effect that may be noise must not decide."""
    failures: Estimate
    """The share of trials that did not complete."""
    failed: int
    attempted: int
    lead: Estimate | None
    """Mean time to make a sandbox ready from cold; None if no cold trial completed."""
    unenforced: tuple[str, ...] = ()
    """Limits that its sandboxes do not enforce."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """The evidence of a study in one setting."""

    setting: Setting
    lengths: tuple[int, ...]
    """All measured lengths of this workload and stage."""
    fastest: str
    """The arm that executes the same work in the least time; work is stated in its seconds."""
    arms: tuple[Evidence, ...]
    left_out: Mapping[str, str]
    """Arms without usable trials, and why."""


def gather(
    results: Results,
    examined: Examined,
    *,
    workload: str | None,
    length: int | None,
    warmth: Warmth,
    actions: int,
    memory_bytes: Mapping[str, int],
) -> Gathered:
    """The evidence in the setting that is nearest to a rollout of this many actions.

    The default workload is the one with the longest trajectory, the last of several. The default length is the one that
    most arms completed; of several, the nearest. Raises InvalidRequest if no such trial completed.
    """
    contenders = [arm for arm in results.study.arms if arm.substrate != NULL]
    names = {arm.name for arm in contenders}
    if unknown := sorted(memory_bytes.keys() - names):
        raise InvalidRequest(f"there is no arm {unknown[0]!r}", hint=f"there are: {', '.join(sorted(names))}")
    serial = [each for each in examined.completed if each.arm in names and each.concurrency == 1]
    workload = choose_workload(serial, workload, warmth)
    lengths = _by_length(serial, workload, warmth)
    if length is None:
        length = max(lengths, key=lambda each: (len(lengths[each]), -abs(log(each / max(1, actions)))))
    if length not in lengths:
        hint = f"there are: {', '.join(map(str, sorted(lengths)))}"
        raise InvalidRequest(f"no {warmth} trial of {workload} with {length} actions completed", hint=hint)
    setting = Setting(workload, length, warmth)

    measured = {arm.name: examined.completed[setting.on(arm.name)] for arm in contenders if arm.name in lengths[length]}
    fastest = _fastest(measured)
    left_out: dict[str, str] = {}
    arms = []
    for arm in contenders:
        facts = results.arms.get(arm.name, {})
        isolation = _wall(facts)
        slowdown = _slowdown(measured.get(arm.name, ()), measured[fastest], results.study.seed)
        if arm.name not in measured:
            left_out[arm.name] = _absence(facts, examined, setting.on(arm.name))
        elif isolation is None:
            left_out[arm.name] = "the results do not say how strong its wall is"
        elif slowdown is None:
            left_out[arm.name] = f"it has no block in common with {fastest}, the fastest"
        else:
            found = _evidence(arm, facts, isolation, slowdown, examined, setting, results.study.seed)
            known = replace(found.candidate, memory_bytes=memory_bytes.get(arm.name, 0))
            arms.append(replace(found, candidate=known))
    if not arms:
        reasons = "; ".join(f"{arm}: {why}" for arm, why in left_out.items())
        raise InvalidRequest(f"no arm of this study has usable trials ({reasons})")
    return Gathered(setting, tuple(sorted(lengths)), fastest, tuple(arms), left_out)


def _by_length(serial: Sequence[Condition], workload: str, warmth: Warmth) -> dict[int, set[str]]:
    """The arms that completed a trial of each length."""
    found: dict[int, set[str]] = {}
    for each in serial:
        if (each.workload, each.warmth) == (workload, warmth):
            found.setdefault(each.length, set()).add(each.arm)
    return found


def _wall(facts: Mapping[str, Any]) -> Isolation | None:
    label = facts.get("isolation")
    return _WALLS.get(label) if isinstance(label, str) else None


def _absence(facts: Mapping[str, Any], examined: Examined, condition: Condition) -> str:
    if why := facts.get("unavailable"):
        return f"it could not run: {why!s:.200}"
    if condition in examined.failures:
        return f"none of its {examined.failures[condition].attempted} trials completed"
    return f"no {condition.warmth} trial of {condition.workload} with {condition.length} actions was run on it"


def _evidence(
    arm: Arm,
    facts: Mapping[str, Any],
    isolation: Isolation,
    slowdown: Estimate,
    examined: Examined,
    setting: Setting,
    seed: int,
) -> Evidence:
    condition = setting.on(arm.name)
    trials, failures = examined.completed[condition], examined.failures[condition]
    blocks = [trial.block for trial in trials]
    acquire = quantile([ready_s(trial) for trial in trials], 0.50, "s", blocks)
    taxes = [(Metric.MEAN_ACTION_TAX.of(trial) or 0.0) / MS_PER_S for trial in trials]
    overhead = quantile(taxes, 0.50, "s", blocks)
    bounds = facts.get("unenforced", ())
    return Evidence(
        Candidate(
            name=arm.name,
            substrate=arm.substrate,
            isolation=isolation,
            acquire_s=acquire.value,
            action_overhead_s=overhead.value,
            slowdown=_beyond_doubt(slowdown),
            failure_rate=failures.rate.value,
            emulated=facts.get("emulated") is True,
            options=arm.options,
        ),
        acquire,
        overhead,
        slowdown,
        failures.rate,
        failures.failed,
        failures.attempted,
        _lead(arm.name, examined, setting, seed),
        tuple(each for each in bounds if isinstance(each, str)) if isinstance(bounds, list | tuple) else (),
        examined.doubts[condition],
    )


def ready_s(trial: Trial) -> float:
    """From the start of a completed trial until its first action could run."""
    assert trial.first_observation_ns is not None
    return max(0, trial.first_observation_ns - trial.actions[0].latency_ns) / NS_PER_S


def _lead(arm: str, examined: Examined, setting: Setting, seed: int) -> Estimate | None:
    """The mean over all lengths: the time of a creation does not depend on the actions after it."""
    trials = [
        trial
        for condition, completed in examined.completed.items()
        if condition == replace(setting, length=condition.length, warmth=Warmth.COLD).on(arm)
        for trial in completed
    ]
    return _ratio(trials, ready_s, lambda trial: 1.0, "s", seed) if trials else None


def _fastest(measured: Mapping[str, Sequence[Trial]]) -> str:
    """The arm with the least execution time in the blocks that all arms have; if there are none, in its own blocks."""
    shared = set.intersection(*({trial.block for trial in trials} for trials in measured.values()))

    def mean_ns(arm: str) -> float:
        kept = [trial for trial in measured[arm] if not shared or trial.block in shared]
        return sum(map(_execute_ns, kept)) / len(kept)

    return min(measured, key=mean_ns)


def _slowdown(trials: Sequence[Trial], fastest: Sequence[Trial], seed: int) -> Estimate | None:
    """Execution time divided by that of the fastest arm, in the blocks of both; None if they share no block."""
    base = {trial.block: _execute_ns(trial) for trial in fastest}
    paired = [trial for trial in trials if trial.block in base]
    return _ratio(paired, _execute_ns, lambda trial: base[trial.block], "x", seed) if paired else None


def _beyond_doubt(slowdown: Estimate) -> float:
    """The slowdown for the decision: 1 if the interval includes 1.

    Otherwise a few per cent of noise in the work would outweigh acquisition and tax, which are known far better.
    """
    low, high = slowdown.low, slowdown.high
    return 1.0 if low is not None and high is not None and low <= 1.0 <= high else slowdown.value


def _execute_ns(trial: Trial) -> float:
    return max(
        1, trial.by_phase.get(Phase.EXECUTE, 0)
    )  # zero counts as one nanosecond, because ratios need a positive number


def _ratio(
    trials: Sequence[Trial], part: Callable[[Trial], float], whole: Callable[[Trial], float], unit: str, seed: int
) -> Estimate:
    parts, wholes = (np.array([[of(trial)] for trial in trials], dtype=np.float64) for of in (part, whole))
    (found,) = means_by_block(parts, wholes, [trial.block for trial in trials], unit, seed)
    return found


def beyond(gathered: Gathered, actions: int) -> tuple[Caveat, ...]:
    """A caveat if no trajectory as long, or as short, was measured."""
    return caveats.extrapolated(actions, gathered.lengths)
