"""A scenario: all parameters of a simulation as one value."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dutyfree.errors import InvalidRequest
from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.simulate.clock import NO_CONTENTION, Contention
from dutyfree.simulate.distributions import Lognormal
from dutyfree.simulate.latencies import EVERY, Latencies
from dutyfree.simulate.load import Behaviour, Load, Recipes, Steps, Stragglers

MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class PoolModel:
    """The pool of every node."""

    limits: Limits
    abilities: Abilities
    plan_every_s: float = 0.005
    """Plans are at least this far apart."""
    tick_s: float = 0.25
    """How often a plan is made when nothing happens."""
    longest_tick_s: float | None = None
    """To save time, ticks may be this far apart. None: they are `tick_s` apart."""
    acquire_timeout_s: float | None = None
    """Requests that have waited this long fail for lack of capacity."""
    knows_costs: bool = True
    """Whether the pool begins with the costs of an earlier run."""

    def __post_init__(self) -> None:
        if self.limits.sandboxes < 1 or self.limits.at_once < 1:
            raise InvalidRequest("a pool needs room for a sandbox, and to make one at a time")
        for each_s in (self.tick_s, self.longest_tick_s, self.acquire_timeout_s):
            if each_s is not None and not 0 < each_s < math.inf:
                raise InvalidRequest(f"a pool cannot wait for {each_s:g} s", hint="give a positive time")
        if not 0 <= self.plan_every_s < math.inf:
            raise InvalidRequest(f"plans cannot be {self.plan_every_s:g} s apart")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Equal nodes, the load on them, and the latencies of their substrate."""

    name: str
    pool: PoolModel
    load: Load
    latencies: Latencies
    recipes: Recipes
    nodes: int = 1
    contention: Contention = NO_CONTENTION
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise InvalidRequest(f"{self.nodes} nodes are refused", hint=f"1 to {MAX_NODES}")
        known = self.latencies.create
        rungs = self.recipes.rungs if self.pool.abilities.images else self.recipes.rungs[:1]
        for rung in rungs:
            if rung not in known and EVERY not in known:
                raise InvalidRequest(f"nothing is known of how long a creation at {rung!r} takes")
        for stage in self.recipes.rungs[1:]:
            if stage not in self.latencies.stages:
                raise InvalidRequest(f"nothing is known of how long the stage {stage!r} takes")
        if isinstance(self.load, Steps) and self.load.quantile < 1 and self.load.concurrency is not None:
            spare = self.load.prompts * self.load.group - self.load.enough
            if spare >= self.load.concurrency:
                raise InvalidRequest("those left over from one step would leave the next without any concurrency")


def default_scenario() -> Scenario:
    """The default scenario; `examples/simulate/grpo-one-node.toml` explains its numbers."""
    behaviour = Behaviour(
        actions=Lognormal(20, 60),
        think_s=Lognormal(1.0, 4.0),
        action_s=Lognormal(0.01, 0.1),
        stragglers=Stragglers(share=0.02, alpha=1.5, most=10),
    )
    return Scenario(
        name="GRPO on one node",
        pool=PoolModel(Limits(sandboxes=128, at_once=4), Abilities(reset=True, images=True)),
        recipes=Recipes(repositories=20, zipf=1.0, rungs=("base", "repository", "dependencies"), variants={}),
        load=Steps(steps=10, behaviour=behaviour, prompts=64, group=8, training_s=60.0, concurrency=96),
        latencies=Latencies(
            create={EVERY: Lognormal(0.0033, 0.006)},
            stages={"repository": Lognormal(1.0, 1.6), "dependencies": Lognormal(7.0, 9.0)},
            reset=Lognormal(0.0039, 0.007),
            destroy=Lognormal(0.0011, 0.003),
            give=Lognormal(0.0002, 0.0005),
        ),
        contention=Contention(cores=2.0, exponent=1.0),
    )
