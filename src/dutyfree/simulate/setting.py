"""What nodes work with: requests, sandboxes that are only counted, and what all nodes have in common."""

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
class Request:
    """A trajectory, from the moment when it asks for a sandbox."""

    rollout: Rollout
    ladder: Ladder
    asked_s: float
    node: int
    step: int = 0
    rung: str = ""
    failures: int = 0
    waits: bool = False


@dataclass(eq=False, slots=True)
class Member:
    """A sandbox."""

    id: str
    ladder: Ladder
    """Why it was made; its states lie on this one."""
    state: State
    made_in: State
    begun_s: float
    """When the last work on it began."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all nodes of a simulation have in common. They are alike: what one of them measures, all know."""

    clock: Clock
    pool: PoolModel
    policy: Policy
    latencies: Latencies
    contention: Contention
    costs: Costs
    leading_to: Mapping[State, Ladder]
    """For every rung of every ladder, a ladder that has it."""
    tally: Tally
    ended: Callable[[Request, str | None], None]
    """Called at the end of each trajectory; with a cause if it has no result."""
