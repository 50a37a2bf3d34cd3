"""Small scenarios for tests of the simulator."""

from __future__ import annotations

from typing import Any

from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.simulate.distributions import Exponential, Fixed, Lognormal
from dutyfree.simulate.latencies import EVERY, Failures, Latencies
from dutyfree.simulate.load import Arrivals, Behaviour, Load, Recipes, Steps, Stragglers
from dutyfree.simulate.scenario import PoolModel, Scenario

RUNGS = ("base", "repository", "dependencies")
BEHAVIOUR = Behaviour(Lognormal(10, 30), Lognormal(0.5, 2.0), Lognormal(0.01, 0.1), Stragglers(0.05))
LATENCIES = Latencies(
    create={EVERY: Lognormal(0.1, 0.2)},
    stages={"repository": Lognormal(0.5, 1.0), "dependencies": Lognormal(2.0, 4.0)},
    reset=Lognormal(0.05, 0.1),
    destroy=Lognormal(0.02, 0.05),
    give=Fixed(0.001),
)
FAILING = Failures(create=0.05, stage=0.05, reset=0.05, destroy=0.05, lease=0.05)


def steps(**changes: Any) -> Steps:
    """Synchronous steps."""
    given: dict[str, Any] = {"steps": 3, "behaviour": BEHAVIOUR, "prompts": 8, "group": 4, "training_s": 20.0}
    return Steps(**{**given, **changes})


def scenario(load: Load | None = None, *, sandboxes: int = 16, at_once: int = 4, **changes: Any) -> Scenario:
    """On one node, unless changed."""
    given: dict[str, Any] = {
        "name": "small",
        "pool": PoolModel(Limits(sandboxes, at_once=at_once), Abilities(reset=True, images=True)),
        "load": load or steps(),
        "latencies": LATENCIES,
        "recipes": Recipes(repositories=6, zipf=1.0, rungs=RUNGS),
    }
    return Scenario(**{**given, **changes})


def queue_of(servers: int, utilisation: float, trajectories: int, hold_s: float = 10.0) -> Scenario:
    """M/M/c: one recipe, exponential holds, Poisson arrivals, and sandboxes that are ready again at once."""
    behaviour = Behaviour(Fixed(1), Exponential(hold_s), Fixed(0))
    rate_per_s = utilisation * servers / hold_s
    return Scenario(
        name="M/M/c",
        pool=PoolModel(
            Limits(servers, at_once=servers), Abilities(reset=True, images=True), plan_every_s=0.0, longest_tick_s=1e9
        ),
        load=Arrivals(trajectories, behaviour, rate_per_s),
        latencies=Latencies({EVERY: Fixed(2e-6)}, reset=Fixed(1e-6), destroy=Fixed(1e-6)),
        recipes=Recipes(repositories=1, rungs=("base",)),
    )


def erlang_c_wait_s(servers: int, utilisation: float, hold_s: float = 10.0) -> float:
    """The mean wait in M/M/c, by Erlang's formula."""
    offered = servers * utilisation
    term = total = 1.0
    for busy in range(1, servers):
        term *= offered / busy
        total += term
    term *= offered / servers / (1 - utilisation)
    return term / (total + term) * hold_s / (servers * (1 - utilisation))
