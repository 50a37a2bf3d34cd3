"""What a sandbox has in it, as a value that can be compared with what somebody wants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class State(NamedTuple):
    """Digests, base first: what was put into a sandbox, in its order.

    The first one also covers all that cannot be changed later (resources, network, where it writes), so that two
    sandboxes whose states are equal are interchangeable. A sandbox may serve those alone whose wanted state begins with
    its own: nobody ever inherits what was not asked for.

    A named tuple, for routes and plans look states up all the time: it is hashed twice as fast as a dataclass.
    """

    digests: tuple[str, ...]

    def begins(self, wanted: State) -> bool:
        """Whether a sandbox in this state can become one in the `wanted` state by adding stages."""
        return wanted.digests[: len(self.digests)] == self.digests

    def cut(self, depth: int) -> State:
        """The first `depth` digests of it."""
        return State(self.digests[:depth])

    @property
    def depth(self) -> int:
        """How many digests there are: 1 is the bare base."""
        return len(self.digests)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The way to a wanted state: its last rung is that state, each rung before it the same with a stage less."""

    names: tuple[str, ...]
    """Of the rungs: `base`, then the recipe's stages."""
    top: State
    rungs: tuple[State, ...] = field(init=False, repr=False, compare=False)
    """All of them, base first."""

    def __post_init__(self) -> None:
        assert len(self.names) == self.top.depth >= 1
        object.__setattr__(self, "rungs", rungs_of(self.top))

    def name_of(self, state: State) -> str:
        """The name of the rung that a sandbox of this state stands on."""
        return self.names[state.depth - 1]

    def missing(self, state: State) -> tuple[str, ...]:
        """The names of the stages between `state` and the top."""
        return self.names[state.depth :]


def rungs_of(state: State) -> tuple[State, ...]:
    """Every state on the way to this one, base first, itself last."""
    return (*(state.cut(depth) for depth in range(1, state.depth)), state)
