"""What the nodes of a simulation share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dutyfree.pool.costs import Costs
from dutyfree.pool.routing import Policy
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.clock import Clock, Contention
from dutyfree.simulate.latencies import Latencies
from dutyfree.simulate.load import Rollout
from dutyfree.simulate.outcome import Tally
from dutyfree.simulate.scenario import PoolModel


@dataclass(eq=False, slots=True)
class Trajectory:
    """A rollout, from the moment when it asks for a sandbox."""

    rollout: Rollout
    ladder: Ladder
    asked_s: float
    node: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """What all nodes of a simulation share. They are equal, so all use the costs that any of them measures."""

    clock: Clock
    pool: PoolModel
    policy: Policy
    latencies: Latencies
    contention: Contention
    costs: Costs
    leading_to: Mapping[State, Ladder]
    """For every rung of every ladder, a ladder that has it."""
    tally: Tally
    ended: Callable[[Trajectory, str | None], None]
    """Called at the end of each trajectory; with a cause if it has no result."""
