"""A study as a value: arms that are compared, grids of conditions, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Resources
from dutyfree.model.limits import MIB

MAX_LENGTH: Final = 10_000
MAX_CONCURRENCY: Final = 1024
MAX_TRIALS: Final = 100_000
"""The limit per combination; a whole study may have twice as many, because its plan is held in memory."""
WHOLE: Final = 0
"""A length that means: all actions of the workload's opening; for a recording, all its actions (`run.gathering`)."""
DEFAULT_RESOURCES: Final = Resources(memory_bytes=1024 * MIB, disk_bytes=512 * MIB)


class Warmth(StrEnum):
    """What exists before a trial's clock starts: nothing, or a sandbox in which these stages are done."""

    COLD = "cold"
    BASE = "base"
    IMAGE = "image"
    REPOSITORY = "repository"
    DEPENDENCIES = "dependencies"


SECRET_OPTIONS: Final = frozenset({"api_key"})
"""Options of substrates that no study file, journal or page may have."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the alternatives that a study compares: a substrate with its options."""

    name: str
    substrate: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Options as in `--option NAME=VALUE`; the path of actions is one of them (`path = "exec"`)."""
    image: str | None = None
    """The image of its sandboxes; None: the substrate's default."""
    max_trials: int | None = None
    """The most trials per condition, for slow arms; their numbers then have a caveat."""
    max_length: int | None = None
    """The longest trajectory that this arm runs."""
    python: str | None = None
    """The interpreter whose installation of Dutyfree runs this arm's trials; None: this process runs them."""

    def __post_init__(self) -> None:
        for name in SECRET_OPTIONS & self.options.keys():
            hint = "give it in the environment, for example E2B_API_KEY"
            raise InvalidRequest(f"arm {self.name!r}: {name} would be written into the results", hint=hint)


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of these, `trials` times each, on every arm, or on the named arms."""

    trials: int
    workloads: tuple[str, ...]
    lengths: tuple[int, ...] = (1,)
    warmths: tuple[Warmth, ...] = (Warmth.COLD,)
    concurrencies: tuple[int, ...] = (1,)
    arms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, values, least, most in (
            ("trials", (self.trials,), 1, MAX_TRIALS),
            ("lengths", self.lengths, WHOLE, MAX_LENGTH),
            ("concurrencies", self.concurrencies, 1, MAX_CONCURRENCY),
        ):
            if not values or any(not least <= value <= most for value in values):
                raise InvalidRequest(f"{name} is {list(values)}; each must lie between 1 and {most}")
        if not self.workloads or not self.warmths:
            raise InvalidRequest("a grid needs workloads and stages")
        if self.trials < max(self.concurrencies):
            hint = "use at least eight times as many trials"
            raise InvalidRequest(f"{self.trials} trials are never {max(self.concurrencies)} at once", hint=hint)

    @property
    def combinations(self) -> int:
        """The number of combinations for each arm."""
        return len(self.workloads) * len(self.lengths) * len(self.warmths) * len(self.concurrencies)


@dataclass(frozen=True, slots=True)
class Condition:
    """The conditions of a trial. Trials of one block differ only in their arm."""

    arm: str
    workload: str
    length: int = 1
    warmth: Warmth = Warmth.COLD
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that decides which trials are run. Equal studies have equal plans."""

    name: str
    arms: tuple[Arm, ...]
    grids: tuple[Grid, ...]
    seed: int = 1
    resources: Resources = DEFAULT_RESOURCES
    trial_timeout_s: float = 600.0
    time_limit_s: float | None = None
    """After this time no further block begins; the results stay valid, and have a caveat."""
    evict: tuple[str, ...] = ()
    """What is evicted before each cold trial: "page-cache". The eviction is verified."""
    keep_think_time: bool = False

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names or not self.grids:
            raise InvalidRequest("a study needs an arm and a grid")
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(f"two arms are called {name!r}")
        for name in (name for grid in self.grids for name in grid.arms):
            if name not in names:
                raise InvalidRequest(f"a grid names the arm {name!r}; there are: {', '.join(names)}")
        for grid, arm in product(self.grids, self.arms):
            most, is_in = max(grid.concurrencies), not grid.arms or arm.name in grid.arms
            if is_in and (arm.max_trials or most) < most:
                raise InvalidRequest(f"at most {arm.max_trials} trials of {arm.name!r} are never {most} at once")
        is_alone = not self.evict and all(max(grid.concurrencies) == 1 for grid in self.grids)
        if not is_alone and any(arm.python is not None for arm in self.arms):
            raise InvalidRequest(
                "another installation is measured one sandbox at a time, and without evictions",
                hint="leave out concurrency above 1, and `evict`",
            )
        trials = sum(grid.trials * grid.combinations * len(self.arms) for grid in self.grids)
        if trials > 2 * MAX_TRIALS:
            raise InvalidRequest(f"these are {trials} trials; a study has at most {2 * MAX_TRIALS}")
        if not self.trial_timeout_s > 0 or (self.time_limit_s is not None and not self.time_limit_s > 0):
            raise InvalidRequest("time limits must be positive")
