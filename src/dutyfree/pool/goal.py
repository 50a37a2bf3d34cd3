"""The goal of a request: the part of it that the pool's decisions depend on."""

from __future__ import annotations

from typing import Protocol

from dutyfree.pool.state import Ladder, State


class Goal(Protocol):
    """A wanted state, and the ladder of states that leads to it.

    The goals of a real pool (`wanted.Wanted`) also have specs and images. The goals of a simulated pool do not.
    """

    @property
    def ladder(self) -> Ladder:
        """The states from the base to the wanted state, which is the last one."""

    def made_in(self, state: State) -> State:
        """The state in which a new sandbox is created when `state` is requested: the deepest one with an image.

        A later reset takes the sandbox back to it.
        """
