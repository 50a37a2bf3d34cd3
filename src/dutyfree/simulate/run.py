"""Runs a scenario: builds nodes, clients and a clock, and runs them to the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from dutyfree.fleet import routing as fleet
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.routing import Policy
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.clock import Clock, Contention
from dutyfree.simulate.latencies import Latencies
from dutyfree.simulate.load import Steps
from dutyfree.simulate.node import Node
from dutyfree.simulate.outcome import Outcome, Tally
from dutyfree.simulate.recording import Recording, Replayer
from dutyfree.simulate.scenario import PoolModel, Scenario
from dutyfree.simulate.setting import Setting, Trajectory
from dutyfree.simulate.trainer import Client, Trainer, Visitors

REPORTED_EVERY: Final = 1000
"""Trajectories between two calls of `on_progress`."""

Progress = Callable[[int], None]
"""Called with the number of trajectories that have ended."""


class Source(Protocol):
    """A source of requests."""

    def start(self) -> None:
        """Send the first requests."""

    def ended(self, request: Trajectory) -> None:
        """A trajectory has ended."""


def simulate(scenario: Scenario, policy: Policy = Policy.LOCALITY, on_progress: Progress | None = None) -> Outcome:
    """Simulate a scenario under a policy. The same scenario gives the same outcome.

    `locality` places groups by consistent hashing and takes the closest idle sandbox; the control arms place each
    rollout where the load is least, and take the one that was idle for longest (`no-locality`) or none (`cold`).
    """
    ladders, load = scenario.recipes.ladders(), scenario.load
    popularity = scenario.recipes.popularity()

    def source(client: Client) -> Source:
        if isinstance(load, Steps):
            return Trainer(load, popularity, scenario.seed, client)
        return Visitors(load, popularity, scenario.seed, client)

    simulation = _Simulation(
        scenario.pool, policy, ladders, scenario.latencies, scenario.contention, scenario.nodes, scenario.seed
    )
    return simulation.run(source, load.trajectories, load.concurrency, on_progress)


def replay(recording: Recording, *, policy: Policy | None = None, seed: int = 1, by_time: bool = False) -> Outcome:
    """Simulate a recorded run: the same requests to the same pool, with latencies drawn from the recording.

    A request that came when so many had ended comes when as many have ended, as from a client that waits for its
    rollouts; `by_time`, it comes when it came, as from one that does not care.
    """
    chosen = recording.policy if policy is None else policy
    simulation = _Simulation(
        recording.pool, chosen, recording.ladders, recording.latencies, recording.contention, 1, seed
    )
    return simulation.run(lambda client: Replayer(recording, client, by_time=by_time), len(recording.asked), None, None)


class _Simulation:
    def __init__(
        self,
        pool: PoolModel,
        policy: Policy,
        ladders: tuple[Ladder, ...],
        latencies: Latencies,
        contention: Contention,
        nodes: int,
        seed: int,
    ) -> None:
        self._pool = pool
        self._policy = policy
        self._ladders = ladders
        self._clock = Clock()
        self._tally = Tally()
        costs = _known_costs(ladders, latencies, pool) if pool.knows_costs else Costs()
        leading_to = {state: ladder for ladder in reversed(ladders) for state in ladder.rungs}
        setting = Setting(self._clock, pool, policy, latencies, contention, costs, leading_to, self._tally, self._ended)
        self._nodes = [Node(index, setting, Random(f"node {index} of {seed}")) for index in range(nodes)]
        self._ring = fleet.Ring([f"node-{index}" for index in range(nodes)])
        self._loads = [0] * nodes
        """Trajectories that were placed on each node and have not ended."""
        self._placed = 0

    def run(
        self,
        source: Callable[[Client], Source],
        trajectories: int,
        concurrency: int | None,
        on_progress: Progress | None,
    ) -> Outcome:
        self._left = trajectories
        self._on_progress = on_progress
        self._client = Client(self._clock, self._nodes, self._ladders, self._place, concurrency)
        self._source = source(self._client)
        self._source.start()
        self._clock.run()
        assert self._left == 0, "a trajectory that never ends is a mistake of the pool's"
        for node in self._nodes:
            node.close()
        self._tally.makespan_s = self._clock.now_s
        return self._tally.outcome(self._policy, len(self._nodes), self._clock.events)

    def _place(self, ladder: Ladder, size: int) -> list[int]:
        if len(self._nodes) == 1:
            chosen = [0] * size
        elif self._policy is Policy.LOCALITY:
            walk, room = self._ring.walk(ladder.top.digests[-1]), self._pool.limits.sandboxes
            chosen = fleet.with_locality(walk, self._loads, room, size, self._placed)
        else:
            chosen = fleet.least_loaded(self._loads, size)
        for node in chosen:
            self._loads[node] += 1
        self._placed += size
        return chosen

    def _ended(self, request: Trajectory, cause: str | None) -> None:
        if cause is None:
            self._tally.completed += 1
        else:
            self._tally.failures[cause] += 1
        self._left -= 1
        self._loads[request.node] -= 1
        self._placed -= 1
        if self._on_progress is not None and self._left % REPORTED_EVERY == 0:
            self._on_progress(self._tally.completed + self._tally.failures.total())
        self._source.ended(request)
        self._client.ended()
        if self._left == 0:
            self._clock.stop()


def _known_costs(ladders: tuple[Ladder, ...], latencies: Latencies, pool: PoolModel) -> Costs:
    """The costs that an earlier run would have measured: the means."""
    costs = Costs()
    costs.observe(Step.destroy(), latencies.destroy.mean)
    seen: set[State] = set()
    for ladder in reversed(ladders):  # the most popular last: a bounded memory keeps these
        for depth, state in enumerate(ladder.rungs):
            if state in seen:
                continue
            seen.add(state)
            costs.observe_size(state, latencies.size)
            if pool.abilities.images or depth == 0:
                costs.observe(Step.create(state), latencies.creation(ladder, state).mean)
                costs.observe(Step.reset(state), latencies.reset.mean)
            if depth:
                costs.observe(Step.stage(state.digests[-1]), latencies.stage(ladder, depth).mean)
    return costs
