"""Distributions of durations: measured samples, or a shape given by two quantiles."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from statistics import NormalDist, fmean, pvariance
from typing import Final, Protocol

from dutyfree.errors import InvalidRequest

MAX_SAMPLES: Final = 100_000
_Z95: Final = NormalDist().inv_cdf(0.95)
_DRAWN_ONE_BY_ONE: Final = 12
"""Up to this many values are added one by one; the sum of more is drawn from a normal distribution."""


def _check_not_negative(value: float) -> None:
    if not 0 <= value < math.inf:
        raise InvalidRequest(f"{value:g} is refused", hint="seconds are finite and not negative")


class Distribution(Protocol):
    """A distribution of seconds, or of counts; never negative."""

    @property
    def mean(self) -> float:
        """The mean."""

    @property
    def variance(self) -> float:
        """The variance."""

    def draw(self, numbers: Random) -> float:
        """Draw one value."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same value."""

    value: float

    def __post_init__(self) -> None:
        _check_not_negative(self.value)

    @property
    def mean(self) -> float:
        return self.value

    @property
    def variance(self) -> float:
        return 0.0

    def draw(self, numbers: Random) -> float:
        return self.value


NOTHING: Final = Fixed(0.0)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """The lognormal distribution with these two quantiles: few parameters, and a tail on the right side."""

    p50: float
    p95: float

    def __post_init__(self) -> None:
        if not 0 < self.p50 <= self.p95 < math.inf:
            raise InvalidRequest(f"p50 {self.p50:g} and p95 {self.p95:g} are no quantiles", hint="0 < p50 <= p95")

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return math.log(self.p95 / self.p50) / _Z95

    @property
    def mean(self) -> float:
        return self.p50 * math.exp(self.sigma**2 / 2)

    @property
    def variance(self) -> float:
        return self.mean**2 * math.expm1(self.sigma**2)

    def draw(self, numbers: Random) -> float:
        return numbers.lognormvariate(math.log(self.p50), self.sigma)


@dataclass(frozen=True, slots=True)
class Exponential:
    """The exponential distribution, for which queueing theory has formulas."""

    mean: float

    def __post_init__(self) -> None:
        if not 0 < self.mean < math.inf:
            raise InvalidRequest(f"a mean of {self.mean:g} is refused", hint="it is positive and finite")

    @property
    def variance(self) -> float:
        return self.mean**2

    def draw(self, numbers: Random) -> float:
        return numbers.expovariate(1 / self.mean)


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured values, each with the same probability."""

    values: tuple[float, ...]
    mean: float = field(init=False, compare=False)
    variance: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.values) <= MAX_SAMPLES:
            raise InvalidRequest(f"{len(self.values)} samples are refused", hint=f"give 1 to {MAX_SAMPLES}")
        for value in self.values:
            _check_not_negative(value)
        object.__setattr__(self, "mean", fmean(self.values))
        object.__setattr__(self, "variance", pvariance(self.values, self.mean))

    def draw(self, numbers: Random) -> float:
        return self.values[int(numbers.random() * len(self.values))]


def total(distribution: Distribution, count: int, numbers: Random) -> float:
    """Draw the sum of `count` values in bounded time: for many values, by the central limit theorem."""
    if count <= _DRAWN_ONE_BY_ONE:
        return sum(distribution.draw(numbers) for _ in range(count))
    return max(0.0, numbers.gauss(count * distribution.mean, math.sqrt(count * distribution.variance)))


@dataclass(frozen=True, slots=True)
class Zipf:
    """Zipf's distribution over `count` items: the k-th has a weight of k to the power of -`exponent`; 0 is uniform."""

    count: int
    exponent: float
    cumulative: Sequence[float] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.count <= MAX_SAMPLES or not 0 <= self.exponent <= 10:
            raise InvalidRequest(
                f"zipf({self.exponent:g}) over {self.count} is refused", hint=f"exponent 0 to 10, 1 to {MAX_SAMPLES}"
            )
        weights = (rank**-self.exponent for rank in range(1, self.count + 1))
        object.__setattr__(self, "cumulative", tuple(accumulate(weights)))

    def draw(self, numbers: Random) -> int:
        """Draw an index, from 0 (the most popular) to `count` - 1."""
        return bisect(self.cumulative, numbers.random() * self.cumulative[-1], hi=self.count - 1)
