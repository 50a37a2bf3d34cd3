"""The load on a fleet: its parameters, and rollouts drawn from them, the same for every policy."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from dutyfree.errors import InvalidRequest
from dutyfree.pool.state import Ladder, State
from dutyfree.simulate.distributions import Distribution, Zipf, total

RUNGS: Final = ("base", "image", "repository", "dependencies")
MAX_TRAJECTORIES: Final = 100_000_000


class Rollout(NamedTuple):
    """One trajectory: the recipe that it wants, and how long it thinks and acts."""

    group: int
    """The number of its prompt; the rollouts of one prompt share a recipe."""
    recipe: int
    think_s: float
    """The total time between actions, while the model thinks."""
    action_s: float
    """The total time of its actions when nothing runs beside them."""

    @property
    def computing(self) -> float:
        """The share of its lease during which it keeps a core busy."""
        return self.action_s / (self.think_s + self.action_s) if self.action_s else 0.0


@dataclass(frozen=True, slots=True)
class Recipes:
    """Repositories, some more popular than others, and the ladders that lead to them."""

    repositories: int = 20
    zipf: float = 1.0
    """The k-th repository is asked for in proportion to k to the power of minus this."""
    rungs: tuple[str, ...] = RUNGS
    variants: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The number of variants of a rung; a rung that is not listed has one for each repository. There is one base."""

    def __post_init__(self) -> None:
        if not self.rungs or len(set(self.rungs)) != len(self.rungs):
            raise InvalidRequest("rungs have names, each its own", hint=f"such as {', '.join(RUNGS)}")
        for name, count in self.variants.items():
            if name not in self.rungs or count < 1:
                raise InvalidRequest(f"{count} variants of {name!r:.80} are refused", hint="name a rung, and 1 or more")
        self.popularity()

    def ladders(self) -> tuple[Ladder, ...]:
        """The way to each repository, the most popular first."""
        return tuple(self._ladder(repository) for repository in range(self.repositories))

    def popularity(self) -> Zipf:
        """The distribution from which repositories are drawn."""
        return Zipf(self.repositories, self.zipf)

    def _ladder(self, repository: int) -> Ladder:
        digests = [self.rungs[0]]
        for name in self.rungs[1:]:
            digests.append(f"{name}-{repository % self.variants.get(name, self.repositories)}")
        return Ladder(self.rungs, State(tuple(digests)))


@dataclass(frozen=True, slots=True)
class Stragglers:
    """A few rollouts think much longer: by a factor drawn from a Pareto distribution."""

    share: float = 0.0
    alpha: float = 1.5
    """The lower, the heavier the tail."""
    most: float = 20.0
    """The largest factor."""

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.alpha > 0 and self.most >= 1):
            raise InvalidRequest("stragglers need a share from 0 to 1, alpha above 0, and at least 1 as most")

    def factor(self, numbers: Random) -> float:
        """The factor for the thinking time of one rollout."""
        # Two draws whatever comes, so that a share that changes leaves the other rollouts as they are.
        chosen, tail = numbers.random() < self.share, numbers.paretovariate(self.alpha)
        return min(tail, self.most) if chosen else 1.0


NO_STRAGGLERS: Final = Stragglers()


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How rollouts behave."""

    actions: Distribution
    think_s: Distribution
    """The thinking time before each action."""
    action_s: Distribution
    """The duration of each action."""
    stragglers: Stragglers = NO_STRAGGLERS
    most_actions: int | None = None
    """Agents are stopped after this many actions."""

    def rollout(self, group: int, recipe: int, numbers: Random) -> Rollout:
        """Draw one rollout of a group."""
        count = max(1, min(round(self.actions.draw(numbers)), self.most_actions or sys.maxsize))
        think_s = total(self.think_s, count, numbers) * self.stragglers.factor(numbers)
        return Rollout(group, recipe, think_s, total(self.action_s, count, numbers))


@dataclass(frozen=True, slots=True)
class Steps:
    """Synchronous training: so many prompts, each rolled out `group` times; then training, then the next step."""

    steps: int
    behaviour: Behaviour
    prompts: int = 64
    group: int = 8
    training_s: float = 60.0
    """The time between the end of a step and the start of the next one."""
    quantile: float = 1.0
    """A step is over when this share of its rollouts has ended; the others go on beside the next one."""
    announced: bool = True
    """Whether the trainer announces, when training begins, what the next step will ask for."""
    concurrency: int | None = None
    """Rollouts that the trainer has in progress at the same time, their wait for a sandbox included."""

    def __post_init__(self) -> None:
        _check_positive(steps=self.steps, prompts=self.prompts, group=self.group, concurrency=self.concurrency)
        _check_count(self.trajectories)
        if not 0 < self.quantile <= 1:
            raise InvalidRequest(f"a step cannot be over at quantile {self.quantile:g}", hint="0 < quantile <= 1")
        if not 0 <= self.training_s < math.inf:
            raise InvalidRequest(f"training of {self.training_s:g} s is refused")

    @property
    def trajectories(self) -> int:
        return self.steps * self.prompts * self.group

    @property
    def enough(self) -> int:
        """The number of rollouts that must have ended before a step is over."""
        return max(1, math.ceil(self.quantile * self.prompts * self.group - 1e-9))

    def step(self, number: int, popularity: Zipf, seed: int) -> list[Rollout]:
        """The rollouts of one step, group by group. They do not depend on the outcome of earlier steps."""
        numbers = Random(f"step {number} of {seed}")
        first = number * self.prompts
        return [
            self.behaviour.rollout(prompt, recipe, numbers)
            for prompt in range(first, first + self.prompts)
            for recipe in [popularity.draw(numbers)]
            for _ in range(self.group)
        ]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Groups that come at random, at a steady rate, without announcement: the control for announced steps."""

    trajectories: int
    behaviour: Behaviour
    rate_per_s: float
    """Groups per second."""
    group: int = 1
    concurrency: int | None = None

    def __post_init__(self) -> None:
        _check_positive(trajectories=self.trajectories, group=self.group, concurrency=self.concurrency)
        _check_count(self.trajectories)
        if not 0 < self.rate_per_s < math.inf:
            raise InvalidRequest(f"a rate of {self.rate_per_s:g} per second is refused")

    def arrivals(self, popularity: Zipf, seed: int) -> Iterator[tuple[float, list[Rollout]]]:
        """When each group comes, in order, and its rollouts."""
        numbers = Random(f"arrivals of {seed}")
        at_s = 0.0
        for group, first in enumerate(range(0, self.trajectories, self.group)):
            at_s += numbers.expovariate(self.rate_per_s)
            recipe = popularity.draw(numbers)
            count = min(self.group, self.trajectories - first)
            yield at_s, [self.behaviour.rollout(group, recipe, numbers) for _ in range(count)]


Load = Steps | Arrivals


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InvalidRequest(f"{name} = {count} is refused", hint="it is 1 or more")


def _check_count(trajectories: int) -> None:
    if trajectories > MAX_TRAJECTORIES:
        raise InvalidRequest(f"{trajectories} trajectories are too many", hint=f"at most {MAX_TRAJECTORIES}")
