"""A number with its interval and its caveats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caveat:
    """A generated reason to doubt a number. Programs read `code`, whose meaning never changes; readers, `text`."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A point estimate with its 95 % interval; a bound is None where the sample is too small to give one."""

    value: float
    low: float | None
    high: float | None
    n: int
    unit: str
    caveats: tuple[Caveat, ...] = ()
