"""Studies to report on: a whole one in small, one that is hardly any, one that failed, one with hostile names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from dutyfree.measure.design.study import Arm, Grid, Study, Warmth
from dutyfree.measure.results.records import Results, TrialOutcome
from dutyfree.measure.stats.analysis import Analysis, analyse
from dutyfree.model import Phase
from support.synthetic_results import ARMS, NATURES, SEED, synthetic_results

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    r"$\frac{1}{0 _under^ \x00",
    "\x1b[31mred\x00 \ud800 \u202e",
    "_{{ 7 * 7 }}{% raw %} | `pipe` [a](http://example.com)",
    "日本語 ]]> --> &amp; " + "x" * 300,
)
"""Names for arms and workloads; each would do something if it were not taken for a name."""

WHOLE = Study(
    name="whole",
    arms=ARMS,
    grids=(
        Grid(14, ("T0", "T1", "T2")),
        Grid(8, ("T0", "T1", "T2"), lengths=(10,)),
        Grid(8, ("T2",), lengths=(50, 150)),
        Grid(8, ("T2",), warmths=tuple(Warmth)[1:], arms=("cell", "docker")),
        Grid(8, ("T1",), lengths=(10,), concurrencies=(2, 4), arms=("null", "cell", "docker")),
    ),
    seed=SEED,
    evict=("page-cache",),
)
TINY = Study("tiny", (Arm("process", "process"), Arm("cell", "cell")), (Grid(2, ("T0",)),), seed=1)
ALONE = Study("alone", (Arm("cell", "cell"),), (Grid(8, ("T0", "T2"), lengths=(1, 10)),), seed=2)


@cache
def whole() -> tuple[Results, Analysis]:
    """Everything that a report can show, in few trials."""
    natures = {**NATURES, "gvisor": replace(NATURES["gvisor"], failure_rate=0.2)}
    return _analysed(synthetic_results(WHOLE, natures=natures))


@cache
def tiny() -> tuple[Results, Analysis]:
    """Two trials on two arms, one action each."""
    return _analysed(synthetic_results(TINY))


@cache
def alone() -> tuple[Results, Analysis]:
    """One arm: nothing to compare it with, and no floor."""
    return _analysed(synthetic_results(ALONE))


@cache
def only_failures() -> tuple[Results, Analysis]:
    """No trial completed, and what they said of it is hostile."""
    results = synthetic_results(TINY)
    return _analysed(
        replace(
            results,
            trials=tuple(
                replace(
                    trial,
                    outcome=TrialOutcome.INFRA_FAILED,
                    failed_phase=Phase.CREATE,
                    cause=f"SubstrateFailed: {HOSTILE[trial.number % len(HOSTILE)]}",
                    actions=(),
                    first_observation_ns=None,
                )
                for trial in results.trials
            ),
            planned=results.planned + 3,
            cut_short="interrupted </p><script>alert(2)</script>",
        )
    )


@cache
def hostile() -> tuple[Results, Analysis]:
    """The whole study on two arms, called like attacks, and so are its workloads, facts, steps and causes."""
    arms = {"docker": HOSTILE[0], "cell": HOSTILE[2], "null": "null"}
    workloads = {"T0": HOSTILE[5], "T1": HOSTILE[4], "T2": "zz" + HOSTILE[1]}
    natures = {**NATURES, "docker": replace(NATURES["docker"], failure_rate=0.2)}
    study = replace(WHOLE, arms=tuple(arm for arm in WHOLE.arms if arm.name in arms))
    return _analysed(_renamed(synthetic_results(study, natures=natures), arms, workloads))


def _analysed(results: Results) -> tuple[Results, Analysis]:
    return results, analyse(results)


def _renamed(results: Results, arms: Mapping[str, str], workloads: Mapping[str, str]) -> Results:
    study = replace(
        results.study,
        name=HOSTILE[0],
        arms=tuple(replace(arm, name=arms[arm.name], image=HOSTILE[1]) for arm in results.study.arms),
        grids=tuple(
            replace(
                grid,
                workloads=tuple(workloads[each] for each in grid.workloads),
                arms=tuple(arms[each] for each in grid.arms),
            )
            for grid in results.study.grids
        ),
    )
    trials = tuple(
        replace(
            trial,
            condition=replace(
                trial.condition, arm=arms[trial.condition.arm], workload=workloads[trial.condition.workload]
            ),
            steps={f"{HOSTILE[3]}{step}": spent_ns for step, spent_ns in trial.steps.items()},
            cause=trial.cause and HOSTILE[1],
        )
        for trial in results.trials
    )
    facts = {arms[name]: {**each, HOSTILE[0]: HOSTILE[1]} for name, each in results.arms.items()}
    return replace(
        results, study=study, trials=trials, arms=facts, host={**results.host, HOSTILE[0]: [HOSTILE[1], None]}
    )
