"""What operations on sandboxes take, and how often they fail: all that a simulation knows of a substrate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.distributions import NOTHING, Distribution

EVERY: Final = "*"
"""The rung that stands for all that are not named."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The probability that an operation fails, by what it is."""

    create: float = 0.0
    stage: float = 0.0
    """Each stage that is added."""
    reset: float = 0.0
    destroy: float = 0.0
    lease: float = 0.0
    """That the machinery fails some time during a lease."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < 1:
                raise InvalidRequest(f"a probability of {getattr(self, name):g} is refused", hint="0 <= p < 1")


NO_FAILURES: Final = Failures()


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one operation with nothing beside it, by digests, or by the names of rungs where a digest is not known."""

    create: Mapping[str, Distribution]
    """In the state of a rung, without images at the base alone; `*` is for all others."""
    stages: Mapping[str, Distribution] = field(default_factory=lambda: MappingProxyType({}))
    """To add a stage inside, by its name."""
    reset: Distribution = NOTHING
    destroy: Distribution = NOTHING
    give: Distribution = NOTHING
    """From the choice of an idle sandbox to a lease on it."""
    size: Size = NO_SIZE
    """Of each sandbox."""
    failures: Failures = NO_FAILURES

    def creation(self, ladder: Ladder, state: State) -> Distribution:
        """Of a new sandbox in `state`, from an image of it."""
        known = self.create
        found = known.get(state.digests[-1]) or known.get(ladder.name_of(state)) or known.get(EVERY)
        if found is None:
            raise InvalidRequest(f"nothing is known of how long a creation at {ladder.name_of(state)!r:.80} takes")
        return found

    def stage(self, ladder: Ladder, depth: int) -> Distribution:
        """Of the stage that leads from `depth` digests to one more."""
        found = self.stages.get(ladder.top.digests[depth]) or self.stages.get(ladder.names[depth])
        if found is None:
            raise InvalidRequest(f"nothing is known of how long the stage {ladder.names[depth]!r:.80} takes")
        return found
