"""Results as a study could have given them, drawn from known distributions with a seed: no sandbox was ever made.

Several substrates, one of them on two paths and one emulated, and the null substrate; latencies are lognormal with a
tail, as latencies are. The phases of every trial add up, as the ledger's do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path

from dutyfree.measure.design.plan import PlannedTrial, plan
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth
from dutyfree.measure.results.records import ActionRecord, Results, Trial, TrialOutcome
from dutyfree.measure.results.writer import ResultsWriter
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Phase

NS_PER_MS = 1_000_000
SEED = 20_260_101
SPREAD = 0.12
QUIET = 0.03
"""How much the reference varies from block to block on a quiet machine."""


@dataclass(frozen=True)
class Nature:
    """The true medians, in milliseconds, of one arm."""

    create_ms: float
    ready_ms: float
    destroy_ms: float
    dispatch_ms: float
    observe_ms: float
    slowdown: float = 1.0
    """Of what runs inside."""
    failure_rate: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    """Shares of creation."""


NATURES = {
    "null": Nature(0.004, 0.002, 0.003, 0.010, 0.008, slowdown=0.0),
    "process": Nature(1.1, 0.5, 1.4, 0.35, 0.30),
    "cell": Nature(4.0, 1.5, 6.0, 0.45, 0.35, steps={"create/mounts": 0.5, "create/clone": 0.3}),
    "docker": Nature(240, 35, 120, 1.1, 0.9, 1.03, 0.01, {"create/container": 0.4, "create/start": 0.55}),
    "docker-exec": Nature(235, 1, 120, 45, 20, 1.03, 0.02, {"create/container": 0.4, "create/start": 0.55}),
    "gvisor": Nature(310, 80, 90, 3.0, 2.2, 1.9, 0.03, {"create/bundle": 0.1, "create/sandbox": 0.8}),
    "microvm": Nature(150, 900, 60, 1.4, 1.2, 2.5, 0.04, {"create/disk": 0.3, "create/machine": 0.6}),
}

EXECUTE_MS = {
    "T0": {ActionKind.COMMAND: 1.2},
    "T1": {ActionKind.INSPECT: 6.0, ActionKind.COMMAND: 2.0},
    "T2": {ActionKind.INSPECT: 6.0, ActionKind.COMMAND: 4.0, ActionKind.EDIT: 2.0, ActionKind.TEST: 380.0},
}
MIX = {
    "T0": {ActionKind.COMMAND: 1.0},
    "T1": {ActionKind.INSPECT: 0.7, ActionKind.COMMAND: 0.3},
    "T2": {ActionKind.INSPECT: 0.4, ActionKind.COMMAND: 0.25, ActionKind.EDIT: 0.2, ActionKind.TEST: 0.15},
}
SETUP_MS = {"T0": (), "T1": (120.0,), "T2": (60.0, 450.0)}
"""By stage: the repository, then its dependencies."""

HOST = {
    "kernel": "6.8.0",
    "architecture": "x86_64",
    "cpu": "A Processor of 2 GHz",
    "cores": 2,
    "memory": "7.8 GiB",
    "cgroups": "v2",
    "file system": "ext4",
    "python": "3.12.3",
}

ARMS = (
    Arm("null", "null"),
    Arm("process", "process"),
    Arm("cell", "cell"),
    Arm("docker", "docker", image="python"),
    Arm("docker-exec", "docker", {"path": "exec"}, image="python"),
    Arm("gvisor", "gvisor", max_length=50),
    Arm("microvm", "microvm", max_trials=20),
)

STUDY = Study(
    name="synthetic",
    arms=ARMS,
    grids=(
        Grid(60, ("T0", "T1", "T2")),
        Grid(60, ("T0", "T1", "T2"), lengths=(10,)),
        Grid(30, ("T2",), lengths=(50, 150)),
        Grid(30, ("T2",), warmths=tuple(Warmth)[1:], arms=("cell", "docker")),
        Grid(192, ("T1",), lengths=(10,), concurrencies=(2, 4, 8), arms=("cell", "docker")),
    ),
    seed=SEED,
    evict=("page-cache",),
)


def synthetic_results(
    study: Study = STUDY, *, seed: int = SEED, natures: Mapping[str, Nature] = NATURES, spread: float = SPREAD
) -> Results:
    """All trials that the study asks for. The study's own seed decides the plan, `seed` how long everything took.

    `spread` is the standard deviation of the logarithm of whatever takes time, stragglers apart.
    """
    random_numbers = random.Random(seed)
    trials: list[Trial] = []
    for planned in (each for block in plan(study) for each in block.trials):
        condition, mix = planned.condition, MIX[planned.condition.workload]
        kinds = random.Random(planned.seed).choices(list(mix), list(mix.values()), k=condition.length)
        trial = _trial(random_numbers, natures[condition.arm], condition, kinds, spread)
        trials.append(replace(trial, number=planned.number, sequence=len(trials), block=planned.block))
    of_machine = random.Random(f"{seed} machine")
    references = {
        number: round(0.8 * NS_PER_MS * exp(of_machine.gauss(0.0, QUIET)))
        for number in dict.fromkeys(trial.block for trial in trials)
    }
    facts = {arm.name: {"version": "1.0", "emulated": arm.substrate == "microvm"} for arm in study.arms}
    return Results(study, HOST, facts, tuple(trials), planned=len(trials), references=references)


def synthetic_pair(
    effect: float, *, seed: int, trials: int = 100, arm: str = "cell", spread: float = SPREAD
) -> tuple[Results, Results]:
    """Two results of one arm; in the second one everything takes `effect` times as long (1.1: a tenth more)."""
    study = Study("pair", (Arm(arm, arm),), (Grid(trials, ("T1",), lengths=(4,)),), seed=seed)
    first, second = (synthetic_results(study, seed=seed + side, spread=spread) for side in (0, 500_000))
    return first, slowed(second, effect)


def slowed(results: Results, effect: float) -> Results:
    """The same, everything `effect` times as long."""
    return replace(results, trials=tuple(stretched(trial, effect) for trial in results.trials))


def drifting(results: Results, machine: Mapping[int, float], follows: float = 1.0) -> Results:
    """The same on a machine that was `exp(machine[block])` times as slow; arms follow that by the power `follows`."""
    trials = (stretched(trial, exp(follows * machine[trial.block])) for trial in results.trials)
    references = {block: round(spent * exp(machine[block])) for block, spent in results.references.items()}
    return replace(results, trials=tuple(trials), references=references)


def stretched(trial: Trial, effect: float) -> Trial:
    """The same trial, everything in it `effect` times as long."""
    actions = tuple(
        replace(
            action,
            dispatch_ns=round(action.dispatch_ns * effect),
            execute_ns=round(action.execute_ns * effect),
            observe_ns=round(action.observe_ns * effect),
        )
        for action in trial.actions
    )
    by_phase = {phase: round(spent * effect) for phase, spent in trial.by_phase.items()}
    first = None if trial.first_observation_ns is None else round(trial.first_observation_ns * effect)
    wall = sum(by_phase.values())
    return replace(trial, actions=actions, by_phase=by_phase, first_observation_ns=first, wall_ns=wall)


def _trial(
    random_numbers: random.Random, nature: Nature, condition: Condition, kinds: list[ActionKind], spread: float
) -> Trial:
    def spent(median_ms: float) -> int:
        noise = exp(random_numbers.gauss(0.0, spread))
        tail = 1 + random_numbers.expovariate(0.8) if random_numbers.random() < 0.02 else 1.0
        return round(median_ms * noise * tail * crowding * NS_PER_MS)

    crowding = 1 + 0.35 * max(0, condition.concurrency - 2)
    by_phase = dict.fromkeys(Phase, 0)
    warm_stages = max(0, list(Warmth).index(condition.warmth) - 2)
    if condition.warmth is Warmth.COLD:
        by_phase[Phase.CREATE] = spent(nature.create_ms)
        by_phase[Phase.READY] = spent(nature.ready_ms)
    by_phase[Phase.SETUP] = sum(
        spent(stage_ms * nature.slowdown) for stage_ms in SETUP_MS[condition.workload][warm_stages:] if nature.slowdown
    )
    before_ns = sum(by_phase.values())
    actions = tuple(
        ActionRecord(
            name=f"{kind}-1",
            kind=kind,
            dispatch_ns=spent(nature.dispatch_ms),
            execute_ns=spent(EXECUTE_MS[condition.workload][kind] * nature.slowdown),
            observe_ns=spent(nature.observe_ms),
        )
        for kind in kinds
    )
    steps = {name: round(share * by_phase[Phase.CREATE]) for name, share in nature.steps.items()}
    trial = Trial(
        number=0,
        sequence=0,
        block=0,
        condition=condition,
        outcome=TrialOutcome.COMPLETED,
        wall_ns=0,
        first_observation_ns=before_ns + actions[0].latency_ns,
        by_phase=by_phase,
        steps={name: spent_ns for name, spent_ns in steps.items() if spent_ns},
        late_ns=round(random_numbers.expovariate(1 / (0.2 * crowding)) * NS_PER_MS) if condition.concurrency > 1 else 0,
        actions=actions,
    )
    if random_numbers.random() < nature.failure_rate:
        trial = _failed(random_numbers, trial)
    else:
        by_phase[Phase.DESTROY] = spent(nature.destroy_ms)
    by_phase[Phase.DISPATCH] = sum(action.dispatch_ns for action in trial.actions)
    by_phase[Phase.EXECUTE] = sum(action.execute_ns for action in trial.actions)
    by_phase[Phase.OBSERVE] = sum(action.observe_ns for action in trial.actions)
    by_phase[Phase.UNATTRIBUTED] = round(random_numbers.uniform(0.0005, 0.004) * sum(by_phase.values()))
    return replace(trial, wall_ns=sum(by_phase.values()))


def _failed(random_numbers: random.Random, trial: Trial) -> Trial:
    """The same trial, gone wrong on the way."""
    kept = random_numbers.randrange(len(trial.actions))
    first = trial.first_observation_ns if kept else None
    cut = replace(trial, actions=trial.actions[:kept], first_observation_ns=first)
    if random_numbers.random() < 0.5:
        return replace(
            cut,
            outcome=TrialOutcome.INFRA_FAILED,
            failed_phase=random_numbers.choice((Phase.CREATE, Phase.READY, Phase.DISPATCH)),
            cause="SubstrateFailed: the sandbox died",
        )
    return replace(
        cut, outcome=TrialOutcome.UNFAITHFUL, failed_phase=Phase.EXECUTE, cause="run-tests: exit code 2, not 0"
    )


def write_results(results: Results, path: Path) -> Path:
    """The same, as a results directory."""
    with ResultsWriter(path, results.study, host=results.host, workloads={}) as writer:
        for arm, facts in results.arms.items():
            writer.arm(arm, facts)
        for block, spawn_ns in results.references.items():
            writer.reference(block, spawn_ns)
        for trial in results.trials:
            planned = PlannedTrial(trial.number, trial.block, trial.condition, seed=0)
            writer.begin(planned, sequence=trial.sequence, late_ns=trial.late_ns, evicted={})
            for action in trial.actions:
                writer.action(trial.number, 0, action)
            writer.end(trial, sandbox="", sync=False)
        writer.stop(results.cut_short)
    return path
