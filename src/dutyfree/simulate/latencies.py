"""How long operations on sandboxes take and how often they fail: a substrate, as a simulation knows it."""

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
"""The rung name that stands for all rungs that are not listed."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The probability that an operation fails, by kind."""

    create: float = 0.0
    stage: float = 0.0
    """For each stage that is added."""
    reset: float = 0.0
    destroy: float = 0.0
    lease: float = 0.0
    """The probability that the infrastructure fails during a lease."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 <= getattr(self, name) < 1:
                raise InvalidRequest(f"a probability of {getattr(self, name):g} is refused", hint="0 <= p < 1")


NO_FAILURES: Final = Failures()


@dataclass(frozen=True, slots=True)
class Latencies:
    """The duration of each operation when it runs alone, by digest, or by rung name if the digest is not listed."""

    create: Mapping[str, Distribution]
    """Creation in the state of a rung; without images, only the base can be created. `*` stands for all other rungs."""
    stages: Mapping[str, Distribution] = field(default_factory=lambda: MappingProxyType({}))
    """Adding a stage inside a sandbox, by stage name."""
    reset: Distribution = NOTHING
    destroy: Distribution = NOTHING
    give: Distribution = NOTHING
    """From the choice of an idle sandbox to the lease."""
    size: Size = NO_SIZE
    """The size of each sandbox."""
    failures: Failures = NO_FAILURES

    def creation(self, ladder: Ladder, state: State) -> Distribution:
        """The duration of a creation in `state`, from its image."""
        known = self.create
        found = known.get(state.digests[-1]) or known.get(ladder.name_of(state)) or known.get(EVERY)
        if found is None:
            raise InvalidRequest(f"nothing is known of how long a creation at {ladder.name_of(state)!r:.80} takes")
        return found

    def stage(self, ladder: Ladder, depth: int) -> Distribution:
        """The duration of the stage that adds the digest after the first `depth`."""
        found = self.stages.get(ladder.top.digests[depth]) or self.stages.get(ladder.names[depth])
        if found is None:
            raise InvalidRequest(f"nothing is known of how long the stage {ladder.names[depth]!r:.80} takes")
        return found
