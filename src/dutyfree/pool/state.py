"""The state of a sandbox: a value that can be compared with the state that a request wants."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from dutyfree.values import dataclass


class State(NamedTuple):
    """The digests of everything that was put into a sandbox, in order, base first.

    The first digest also covers what cannot be changed later (resources, network, where the sandbox writes), so that
    two sandboxes with equal states are interchangeable. A sandbox may serve a request only if the wanted state begins
    with the sandbox's own: a tenant never gets contents that it did not ask for.

    It is a named tuple, which is hashed twice as fast as a dataclass: routes and plans use states as dictionary keys.
    """

    digests: tuple[str, ...]

    def begins(self, wanted: State) -> bool:
        """Whether a sandbox in this state can become one in the `wanted` state by adding stages."""
        return wanted.digests[: len(self.digests)] == self.digests

    def cut(self, depth: int) -> State:
        """The state with only the first `depth` digests."""
        return State(self.digests[:depth])

    @property
    def depth(self) -> int:
        """The number of digests. The base alone has 1."""
        return len(self.digests)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The states between the base and a wanted state. Each rung has one stage more than the rung before."""

    names: tuple[str, ...]
    """The names of the rungs: `base`, then the recipe's stages."""
    top: State
    """The wanted state: the last rung."""
    rungs: tuple[State, ...] = field(init=False, repr=False, compare=False)
    """The states of all rungs, base first."""

    def __post_init__(self) -> None:
        assert len(self.names) == self.top.depth >= 1
        object.__setattr__(self, "rungs", rungs_of(self.top))

    def name_of(self, state: State) -> str:
        """The name of the rung with this state."""
        return self.names[state.depth - 1]

    def missing(self, state: State) -> tuple[str, ...]:
        """The names of the stages between `state` and the top."""
        return self.names[state.depth :]


def rungs_of(state: State) -> tuple[State, ...]:
    """Every state that this one begins with, base first; the last one is the state itself."""
    return (*(state.cut(depth) for depth in range(1, state.depth)), state)
