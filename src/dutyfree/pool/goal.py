"""What a request asks a pool for, as far as decisions depend on it."""

from __future__ import annotations

from typing import Protocol

from dutyfree.pool.state import Ladder, State


class Goal(Protocol):
    """A wanted state, and the way to it.

    A real pool's goals (`wanted.Wanted`) also hold specs and images; a simulated pool's hold nothing else.
    """

    @property
    def ladder(self) -> Ladder:
        """The states on the way, base first; the last one is what is wanted."""

    def made_in(self, state: State) -> State:
        """The state in which a new sandbox is created when `state` is asked for: the deepest one with an image.

        A later reset takes the sandbox back to it.
        """
