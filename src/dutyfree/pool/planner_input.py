"""The input of the planner and the router: plain values, the same for a real pool and for a simulated one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from dutyfree.pool.costs import Costs
from dutyfree.pool.demand import Demand
from dutyfree.pool.size import NO_SIZE
from dutyfree.pool.size import Size as Size
from dutyfree.pool.state import Ladder, State
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle sandbox, ready for a request."""

    sandbox: str
    state: State
    made_in: State
    """The state after a reset: `state`, unless stages were added after the creation."""
    since_s: float
    """When it became idle."""
    size: Size = NO_SIZE
    clock: float = 0.0
    """The pool's eviction clock (`PlannerInput.clock`) when it became idle."""


class Returned(NamedTuple):
    """A sandbox whose lease has ended. It still contains the files and processes of its tenant."""

    sandbox: str
    made_in: State
    size: Size = NO_SIZE


class OperationKind(StrEnum):
    """The kinds of operations on a sandbox."""

    CREATE = "create"
    PROMOTE = "promote"
    RESET = "reset"
    DESTROY = "destroy"


class Operation(NamedTuple):
    """An operation in progress. It holds a place and memory in the pool until it ends."""

    kind: OperationKind
    state: State
    """The state of the sandbox when the operation has ended; for a destruction, its state before."""
    since_s: float
    """When the operation began."""
    size: Size = NO_SIZE


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a pool, for leased and all other sandboxes together."""

    sandboxes: int
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    at_once: int = 4
    """The most creations, promotions and resets in progress at the same time."""

    def allow(self, size: Size) -> bool:
        """Whether sandboxes with this total size keep to the limits."""
        return (self.memory_bytes is None or size.memory_bytes <= self.memory_bytes) and (
            self.disk_bytes is None or size.disk_bytes <= self.disk_bytes
        )

    def clamp(self, size: Size) -> Size:
        """The expected size of one sandbox, cut to the limits, so that a sandbox always fits into an empty pool.

        An expected size is only what earlier tenants have used. If it is above the limits, the request must not wait
        for ever.
        """
        if self.memory_bytes is None and self.disk_bytes is None:
            return size
        return Size(
            size.memory_bytes if self.memory_bytes is None else min(size.memory_bytes, self.memory_bytes),
            size.disk_bytes if self.disk_bytes is None else min(size.disk_bytes, self.disk_bytes),
        )


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of the substrate that the planner needs to know."""

    reset: bool = False
    images: bool = False
    """Whether a sandbox can be created in any state of a ladder, not just at its base."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The weights that the planner gives to waiting requests and to idle sandboxes."""

    quantile: float = 0.95
    """The newsvendor quantile c_u / (c_u + c_o): the share of unannounced requests that should find a sandbox ready.
    c_u is the cost of a request that waits, c_o the cost of a sandbox that is not used; at 0.95, c_u is 19 c_o."""
    idle_gib_s_per_wait_s: float = 3600.0
    """One second of waiting costs as much as this many seconds of 1 GiB of idle memory. It bounds keep-alive. The
    default is an hour: 1 GiB of memory costs about 0.3 cents an hour, an idle accelerator about 0.3 cents a second."""
    keep_at_least_s: float = 10.0
    keep_at_most_s: float = 3600.0
    keep_unknown_s: float = 60.0
    """How long sandboxes in a state are kept while the gaps between its requests are not known yet."""
    hysteresis: float = 1.5
    """The planner replaces an existing sandbox only by one that is worth more than this many times as much."""


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """The state of a pool at one moment."""

    now_s: float
    limits: Limits
    abilities: Abilities
    costs: Costs
    demand: Demand
    ladders: Mapping[State, Ladder]
    """The ladder of each state that was requested or announced."""
    idle: tuple[Idle, ...] = ()
    returned: tuple[Returned, ...] = ()
    operations: tuple[Operation, ...] = ()
    leased: int = 0
    """The number of leased sandboxes, their forks included."""
    leased_size: Size = NO_SIZE
    """The total size of all leased sandboxes."""
    waiting: Mapping[State, int] = field(default_factory=dict)
    """The number of waiting requests for each state. The state of the request that is served next comes first."""
    clock: float = 0.0
    """The clock of greedy-dual eviction. It begins at 0; the pool moves it to `Destroy.clock` if that is later."""
    tuning: Tuning = Tuning()
