"""The commands of a pool: from the planner to the core, and from the core to its driver."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from dutyfree.errors import DutyfreeError
from dutyfree.leases.table import Lease
from dutyfree.pool.goal import Goal
from dutyfree.pool.members import Member
from dutyfree.pool.planner_input import OperationKind
from dutyfree.pool.queue import Request
from dutyfree.pool.state import State
from dutyfree.values import dataclass

G = TypeVar("G", bound=Goal)

# Commands from the planner to the core.


@dataclass(frozen=True, slots=True)
class Create:
    """Make a new sandbox in this state."""

    state: State


@dataclass(frozen=True, slots=True)
class Promote:
    """Add stages to an idle sandbox until it is in this state."""

    sandbox: str
    state: State


@dataclass(frozen=True, slots=True)
class Demote:
    """Reset an idle sandbox, to which stages were added, to the state that it was made in."""

    sandbox: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset a returned sandbox to the state that it was made in: everything from its lease is removed."""

    sandbox: str


@dataclass(frozen=True, slots=True)
class Destroy:
    """Destroy an idle or returned sandbox."""

    sandbox: str
    reason: str
    """`surplus`, `expired`, `evicted` or `unusable`: for counters."""
    clock: float = 0.0
    """For an eviction: the pool's eviction clock moves to this value, if that is later."""


PlannerCommand = Create | Promote | Demote | Reset | Destroy

# Commands from the core to its driver. A named tuple is made twice as fast as a frozen dataclass; a lease needs three.


class Start(NamedTuple, Generic[G]):
    """Begin an operation, and report its end to `PoolCore.finished` by its number."""

    number: int
    kind: OperationKind
    goal: G
    state: State
    """The state of the sandbox after the operation; for a destruction, its state before."""
    made_in: State
    """The state in which a creation makes the sandbox, before stages are added up to `state`."""
    member: Member[G] | None
    """None for a creation."""
    within_s: float | None = None
    """A creation is stuck after this time: the driver cancels it and reports DeadlineExceeded."""
    reason: str = ""
    """`demote` for a reset of an idle sandbox; for a destruction, `lost` or a `Destroy.reason`."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Cancel a creation that no request waits for any more, and report it to `PoolCore.finished`."""

    number: int


class Give(NamedTuple, Generic[G]):
    """Give the leased sandbox to the caller of this request."""

    request: Request[G]
    lease: Lease
    member: Member[G]


@dataclass(frozen=True, slots=True)
class Refuse(Generic[G]):
    """Raise this error in the caller of this request."""

    request: Request[G]
    error: DutyfreeError


@dataclass(frozen=True, slots=True)
class Expire:
    """This lease has expired: lock its tenant out, then call `PoolCore.returned`."""

    lease: Lease


CoreCommand = Start[G] | Abort | Give[G] | Refuse[G] | Expire
