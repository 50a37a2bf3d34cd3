"""Worker-hours, time and money of a training run, with intervals.

Every result is the latency of one trajectory times a number, so that the interval of the latency, times that number, is
the interval of the result. The model leaves out queueing, idle workers, retries of failed trajectories, and everything
that is not infrastructure (inference, reward, optimiser).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, pairwise, product
from typing import Any, Final

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import MAX_LENGTH
from dutyfree.measure.project.latencies import Latencies
from dutyfree.measure.stats import caveats
from dutyfree.measure.stats.estimate import Caveat, Estimate

S_PER_HOUR: Final = 3_600.0
GRID_STEPS: Final = (50, 100, 150, 200, 250, 300)
GRID_TRAJECTORIES: Final = (100_000, 1_000_000, 10_000_000)
MOST_TRAJECTORIES: Final = 10**12
ASSUMPTIONS: Final = (
    "every worker is busy all the time, and nothing waits for a worker",
    "no trajectory fails or is repeated",
    "GPUs that wait do so for as long as the rollouts take",
)


@dataclass(frozen=True, slots=True)
class Scale:
    """A training run. Prices are in the user's currency."""

    trajectories: int = 1_000_000
    steps: int = 150
    workers: int | None = None
    price_per_worker_hour: float | None = None
    gpu_price_per_hour: float | None = None
    gpus_waiting: int | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("trajectories", self.trajectories, MOST_TRAJECTORIES),
            ("steps", self.steps, MAX_LENGTH),
            ("workers", self.workers, 10**9),
            ("gpus waiting", self.gpus_waiting, 10**9),
        ):
            if value is not None and not 1 <= value <= most:
                raise InvalidRequest(f"{name} is {value}; it must lie between 1 and {most}")
        for name, price in (
            ("price per worker-hour", self.price_per_worker_hour),
            ("GPU price per hour", self.gpu_price_per_hour),
        ):
            if price is not None and not 0 <= price < float("inf"):
                raise InvalidRequest(f"the {name} is {price}; it must not be negative")
        if (self.gpu_price_per_hour is None) != (self.gpus_waiting is None):
            raise InvalidRequest("money for waiting GPUs needs both their price and how many wait")
        if self.gpus_waiting is not None and self.workers is None:
            raise InvalidRequest("how long GPUs wait depends on how many workers there are", hint="give --workers")


@dataclass(frozen=True, slots=True)
class ArmProjection:
    """One arm at one scale. A field is None if the scale lacks its input."""

    arm: str
    latency: Estimate
    """The latency of one trajectory, in seconds: the measurement; all other fields are projected."""
    worker_hours: Estimate
    elapsed_hours: Estimate | None
    worker_cost: Estimate | None
    gpu_idle_hours: Estimate | None
    gpu_idle_cost: Estimate | None
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True, slots=True)
class GridPoint:
    """The run with another number of steps or trajectories."""

    steps: int
    trajectories: int
    worker_hours: dict[str, Estimate]
    """By arm, fewest first; without arms whose trials do not support a projection to these steps."""


@dataclass(frozen=True, slots=True)
class RankChange:
    """Two arms whose order changes with the number of steps. The number of trajectories never changes the order."""

    steps: int
    """The first length at which `overtakes` is faster."""
    overtakes: str
    overtaken: str
    certain: bool
    """Whether the difference is significant at both ends of the grid."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Everything here is extrapolated from latencies."""

    source: str
    scale: Scale
    arms: tuple[ArmProjection, ...]
    """Fewest worker-hours first."""
    spread: ArmProjection | None
    """The slowest minus the fastest; its arm reads "slowest - fastest". None for a single arm."""
    spread_ratio: float | None
    """The slowest divided by the fastest; None for a single arm, or if the fastest takes no time."""
    grid: tuple[GridPoint, ...]
    rank_changes: tuple[RankChange, ...]
    caveats: tuple[Caveat, ...] = ()
    """Caveats of all numbers; those of one arm are in its projection."""
    assumptions: tuple[str, ...] = ASSUMPTIONS
    kind: str = "projection"

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return asdict(self)


def worker_hours(latency_s: float, trajectories: int) -> float:
    """The paper's second equation: trajectories x latency / 3600."""
    return trajectories * latency_s / S_PER_HOUR


def project(
    latencies: Latencies,
    scale: Scale,
    *,
    grid_steps: Sequence[int] = GRID_STEPS,
    grid_trajectories: Sequence[int] = GRID_TRAJECTORIES,
) -> Projection:
    """Project the run on every arm, at this and other scales, and find where the order of arms changes.

    No time, and no bound of one, is below zero: bounds end there, with a caveat. Raises InvalidRequest if an arm's mean
    at these steps is: its trials do not support the projection.
    """
    at_scale = {arm: _possible(latencies.at(arm, scale.steps), arm, scale.steps) for arm in latencies.arms}
    ranked = sorted(at_scale, key=lambda arm: at_scale[arm].value)
    spread, ratio = None, None
    if len(ranked) > 1:
        fastest, slowest = ranked[0], ranked[-1]
        gap = latencies.gap(slowest, fastest, scale.steps)
        spread = _projected(f"{slowest} - {fastest}", _above_zero(gap, "which arm is faster is not certain"), scale)
        ratio = at_scale[slowest].value / at_scale[fastest].value if at_scale[fastest].value > 0 else None
    steps = latencies.lengths(grid_steps)
    return Projection(
        source=latencies.source,
        scale=scale,
        arms=tuple(_projected(arm, at_scale[arm], scale) for arm in ranked),
        spread=spread,
        spread_ratio=ratio,
        grid=tuple(
            point
            for each in steps
            for n in grid_trajectories
            if (point := _grid_point(latencies, each, n)).worker_hours
        ),
        rank_changes=tuple(_rank_changes(latencies, steps)),
        caveats=latencies.caveats,
    )


def _possible(latency: Estimate, arm: str, steps: int) -> Estimate:
    if latency.value < 0:
        raise InvalidRequest(
            f"the trials of {arm} cannot be projected to {steps} steps: the line through them falls below zero",
            hint="measure more trajectories, or longer ones; or project to fewer steps: --steps",
        )
    return _above_zero(latency, f"they hardly support a projection to {steps} steps")


def _above_zero(estimate: Estimate, what: str) -> Estimate:
    """The estimate with bounds of at least zero; with a caveat if one was below."""
    if estimate.low is None or estimate.low >= 0:
        return estimate
    high = None if estimate.high is None else max(0.0, estimate.high)
    return replace(estimate, low=0.0, high=high, caveats=(*estimate.caveats, caveats.below_zero(what)))


def _projected(arm: str, latency: Estimate, scale: Scale) -> ArmProjection:
    def times(factor: float, unit: str) -> Estimate:
        return _scaled(latency, factor, unit)

    hours = scale.trajectories / S_PER_HOUR
    elapsed = None if scale.workers is None else hours / scale.workers
    idle = None if elapsed is None or scale.gpus_waiting is None else elapsed * scale.gpus_waiting
    price, gpu_price = scale.price_per_worker_hour, scale.gpu_price_per_hour
    return ArmProjection(
        arm=arm,
        latency=latency,
        worker_hours=times(hours, "h"),
        elapsed_hours=None if elapsed is None else times(elapsed, "h"),
        worker_cost=None if price is None else times(hours * price, "money"),
        gpu_idle_hours=None if idle is None else times(idle, "h"),
        gpu_idle_cost=None if idle is None or gpu_price is None else times(idle * gpu_price, "money"),
        caveats=latency.caveats,
    )


def _scaled(estimate: Estimate, factor: float, unit: str) -> Estimate:
    low, high = (None if end is None else end * factor for end in (estimate.low, estimate.high))
    return replace(estimate, value=estimate.value * factor, low=low, high=high, unit=unit)


def _grid_point(latencies: Latencies, steps: int, trajectories: int) -> GridPoint:
    found = {arm: _above_zero(latencies.at(arm, steps), f"at {steps} steps") for arm in latencies.arms}
    at = {arm: latency for arm, latency in found.items() if latency.value >= 0}
    ranked = sorted(at, key=lambda arm: at[arm].value)
    factor = trajectories / S_PER_HOUR
    return GridPoint(steps, trajectories, {arm: _scaled(at[arm], factor, "h") for arm in ranked})


def _rank_changes(latencies: Latencies, steps: Sequence[int]) -> list[RankChange]:
    found = []
    for pair, (first, last) in product(combinations(latencies.arms, 2), pairwise(steps)):
        fast, slow = sorted(pair, key=lambda arm: latencies.mean_s(arm, first))
        if latencies.mean_s(slow, last) < latencies.mean_s(fast, last):
            low, high = first, last  # the order differs at the two ends: find where it changes
            while high - low > 1:
                middle = (low + high) // 2
                overtaken = latencies.mean_s(slow, middle) < latencies.mean_s(fast, middle)
                low, high = (low, middle) if overtaken else (middle, high)
            ends = (latencies.gap(slow, fast, steps[0]), latencies.gap(fast, slow, steps[-1]))
            certain = all(end.low is not None and end.low > 0 for end in ends)
            found.append(RankChange(high, slow, fast, certain))
    return sorted(found, key=lambda change: change.steps)
