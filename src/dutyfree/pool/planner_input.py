"""All that the planner and the router know: values, the same for a real pool and for a simulated one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dutyfree.pool.costs import Costs
from dutyfree.pool.demand import Demand
from dutyfree.pool.size import NO_SIZE
from dutyfree.pool.size import Size as Size
from dutyfree.pool.state import Ladder, State


@dataclass(frozen=True, slots=True)
class Idle:
    """A sandbox that waits for somebody."""

    sandbox: str
    state: State
    made_in: State
    """Where a reset takes it: `state`, unless stages were added after its creation."""
    since_s: float
    size: Size = NO_SIZE
    clock: float = 0.0
    """The pool's eviction clock (`PlannerInput.clock`) at the moment when it became idle."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A sandbox whose lease has ended, with all that its tenant left in it."""

    sandbox: str
    made_in: State
    size: Size = NO_SIZE


class OperationKind(StrEnum):
    """What is being done to a sandbox."""

    CREATE = "create"
    PROMOTE = "promote"
    RESET = "reset"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Operation:
    """Something under way, which holds a place and memory until it ends."""

    kind: OperationKind
    state: State
    """What will be idle when it ends; of a destruction, what is being ended."""
    since_s: float
    size: Size = NO_SIZE


@dataclass(frozen=True, slots=True)
class Limits:
    """Never exceeded, leased sandboxes included."""

    sandboxes: int
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    at_once: int = 4
    """Creations, promotions and resets under way."""

    def allow(self, size: Size) -> bool:
        """Whether sandboxes that take so much together keep to the limits."""
        return (self.memory_bytes is None or size.memory_bytes <= self.memory_bytes) and (
            self.disk_bytes is None or size.disk_bytes <= self.disk_bytes
        )

    def clamp(self, size: Size) -> Size:
        """The expected size of one sandbox, at most all that is allowed: alone, every sandbox fits.

        A size is what earlier tenants have used, so a larger one is no reason to let a request wait for ever.
        """
        return Size(
            size.memory_bytes if self.memory_bytes is None else min(size.memory_bytes, self.memory_bytes),
            size.disk_bytes if self.disk_bytes is None else min(size.disk_bytes, self.disk_bytes),
        )


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the substrate's sandboxes can do, as far as plans depend on it."""

    reset: bool = False
    images: bool = False
    """Whether a sandbox can be created in any state of a ladder, not just at its base."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a pool's owner thinks a wait and an idle sandbox are worth."""

    quantile: float = 0.95
    """The newsvendor's c_u / (c_u + c_o): how often unannounced demand is to find its sandbox ready. At 0.95 a miss is
    held to be 19 times as bad as a sandbox that nobody came for."""
    idle_gib_s_per_wait_s: float = 3600.0
    """How many seconds of an idle GiB a second of waiting is worth: it bounds keep-alive. An hour, for a GiB of memory
    costs about a third of a cent in an hour, and an accelerator that waits about as much in a second."""
    keep_at_least_s: float = 10.0
    keep_at_most_s: float = 3600.0
    keep_unknown_s: float = 60.0
    """How long sandboxes are kept before anything is known about the gaps between those who ask for them."""
    hysteresis: float = 1.5
    """How many times as much something new must be worth before what exists makes room for it."""


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """A pool at one moment."""

    now_s: float
    limits: Limits
    abilities: Abilities
    costs: Costs
    demand: Demand
    ladders: Mapping[State, Ladder]
    """By their tops: everything that anybody asked for or announced."""
    idle: tuple[Idle, ...] = ()
    returned: tuple[Returned, ...] = ()
    operations: tuple[Operation, ...] = ()
    leased: int = 0
    leased_size: Size = NO_SIZE
    """Of all leased ones together."""
    waiting: Mapping[State, int] = field(default_factory=dict)
    """Requests in the queue, by what they want; first what the one wants whose turn is next, so that nobody starves."""
    clock: float = 0.0
    """Of greedy-dual eviction: begins at 0; the pool moves it to `Destroy.clock` whenever that is later."""
    tuning: Tuning = Tuning()
