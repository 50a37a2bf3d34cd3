"""How many sandboxes to keep ready: for announced demand, and for unannounced demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from scipy.special import bdtrc, pdtr

from dutyfree.errors import InvalidRequest

CONFIDENCE: Final = 0.99
MOST_WANTED: Final = 10**7
MOST_REDUNDANCY: Final = 100
"""With more redundancy than this factor, no size is given: another substrate would be the better choice."""
DEFAULT_MISS_COST: Final = 99.0


@dataclass(frozen=True, slots=True)
class Announced:
    """A trainer's step that announces how many sandboxes it needs."""

    prompts: int
    group: int
    failure_rate: float
    wanted: int
    """prompts x group."""
    size: int | None
    """The smallest N' with P(Binomial(N', 1 - failure_rate) >= wanted) >= 0.99; None: it would be too many."""
    redundancy: float | None
    """`size` is wanted x (1 + redundancy)."""
    worst_failure_rate: float
    """The upper end of the failure rate's 95 % interval."""
    worst_size: int | None
    """The size for that rate."""


@dataclass(frozen=True, slots=True)
class Unannounced:
    """Requests that arrive one by one, independently of each other, at a steady rate."""

    rate_per_s: float
    lead_s: float
    """Mean time until a taken sandbox is replaced. Only the mean matters: however lead times vary, the
    number of sandboxes that are being made is a Poisson variable with the mean rate x lead (Palm's theorem)."""
    expected: float
    """rate x lead: the expected number of requests while one sandbox is made."""
    level: float
    """miss cost / (miss cost + 1), the newsvendor's critical ratio: how often enough sandboxes must be ready."""
    quantile: int
    """The smallest s with P(Poisson(expected) <= s) >= level."""
    floor: int
    """By Little's law, this many are being made at any time: a smaller pool cannot keep up."""
    size: int
    """Sandboxes to keep ready: the larger of the two."""
    in_use: float
    """rate x life, by the same law: the number of leased sandboxes at any time, in addition to the ready ones."""


def announced(prompts: int, group: int, failure_rate: float, worst_failure_rate: float) -> Announced:
    """The size for `prompts` x `group` rollouts. Raises InvalidRequest for numbers out of range."""
    wanted = prompts * group
    if min(prompts, group) < 1 or wanted > MOST_WANTED:
        raise InvalidRequest(f"{prompts} prompts x {group} are not between 1 and {MOST_WANTED} rollouts")
    size = with_redundancy(wanted, failure_rate)
    redundancy = None if size is None else size / wanted - 1
    worst_size = with_redundancy(wanted, worst_failure_rate)
    return Announced(prompts, group, failure_rate, wanted, size, redundancy, worst_failure_rate, worst_size)


def unannounced(rate_per_s: float, lead_s: float, life_s: float, miss_cost: float = DEFAULT_MISS_COST) -> Unannounced:
    """The size for requests at this rate. `miss_cost`: the cost of a waiting request, in idle sandboxes.

    Raises InvalidRequest for numbers out of range.
    """
    if not 0 < rate_per_s <= 1e6:
        raise InvalidRequest(f"the rate is {rate_per_s:g} per second; it must lie above 0, and up to a million")
    if not 0 < miss_cost <= 1e9:
        raise InvalidRequest(f"the cost of a miss is {miss_cost:g}; it must lie above 0, and up to 1e9")
    expected, level = rate_per_s * lead_s, miss_cost / (miss_cost + 1)
    quantile = _least(0, lambda size: float(pdtr(size, expected)) >= level) if expected else 0
    floor = ceil(expected)
    size, in_use = max(quantile, floor), rate_per_s * life_s
    return Unannounced(rate_per_s, lead_s, expected, level, quantile, floor, size, in_use)


def with_redundancy(wanted: int, failure_rate: float) -> int | None:
    """The smallest number so that at least `wanted` succeed, with `CONFIDENCE`; None if it is too large."""
    most = MOST_REDUNDANCY * wanted

    def suffices(size: int) -> bool:
        return float(bdtrc(wanted - 1, size, 1 - failure_rate)) >= CONFIDENCE

    if failure_rate <= 0:
        return wanted
    return _least(wanted, suffices) if failure_rate < 1 and suffices(most) else None


def _least(start: int, suffices: Callable[[int], bool]) -> int:
    """The smallest sufficient number from `start` on, by bisection. Every larger number must suffice, too."""
    if suffices(start):
        return start
    step = 1
    while not suffices(start + step):
        step *= 2
    low, high = start + step // 2, start + step  # the one does not suffice, the other does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
