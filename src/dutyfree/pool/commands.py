"""What a planner can tell a pool to do."""

from __future__ import annotations

from dataclasses import dataclass

from dutyfree.pool.state import State


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
    """Take an idle sandbox, to which stages were added, back to the state that it was made in."""

    sandbox: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Take a sandbox that was given back to the state that it was made in, with nothing left of its lease."""

    sandbox: str


@dataclass(frozen=True, slots=True)
class Destroy:
    """End a sandbox that is idle or was given back."""

    sandbox: str
    reason: str
    """`surplus`, `expired`, `evicted`, `unusable`: for counters."""
    clock: float = 0.0
    """Of an eviction: what the pool's clock is to be from now on, unless it is later already."""


Command = Create | Promote | Demote | Reset | Destroy
