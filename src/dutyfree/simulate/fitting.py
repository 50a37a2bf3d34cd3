"""How much operations slow each other down, and what each would have taken alone: from when they began and ended.

With `n` operations in progress each is taken to go at `(capacity / n) ** exponent` of its speed alone (see
`Contention`). For given numbers, the work that an operation has done is the integral of that speed over its time. How
much work an operation is does not depend on how many others it meets when it begins. So the numbers are those under
which operations that met many others have done as much work, on average, as those that met few.

(Not those under which all operations are most alike: large ones take longer, and so they outlive the others.)

The capacity is at most the number of cores, and less where operations share something else. Cells are made by one event
loop and one spawner: two of them at the same time already wait for each other, on any number of cores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import log, sqrt
from statistics import fmean
from typing import Final

from dutyfree.simulate.clock import NO_CONTENTION, Contention

EXPONENTS: Final = tuple(step / 20 for step in range(41))
CAPACITIES: Final = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Tried up to the number of cores, which is tried, too."""
CLEARLY_LESS: Final = 0.6
"""A capacity below the number of cores must explain this much more: a higher exponent explains nearly the same."""
LEAST_CORRELATION: Final = 3.0
"""In standard errors, between the time of operations and how many they met: below it, no contention is shown."""
MOST_MET: Final = 16
"""Operations that met more than this count as one group."""
_SHORTEST_S: Final = 1e-9
FEW: Final = 20
"""Operations; fewer are not fitted."""
MANY: Final = 20_000
"""Operations; of more, the last ones are fitted: a bound on how long the search takes."""


@dataclass(frozen=True, slots=True)
class Took:
    """One operation of a real run."""

    operation: str
    digest: str
    seconds: float
    end_s: float | None = None
    """When it ended; None if that was not recorded."""


def fit(took: Sequence[Took], cores: float) -> tuple[Contention, list[Took]]:
    """The contention among operations on so many cores, and the operations as they would have been alone.

    Operations without a time, and all of them where nothing can be said, are as they were, without contention.
    """
    timed = sorted((each for each in took if each.end_s is not None and each.seconds > 0), key=_end_s)
    found = _contention(timed[-MANY:], cores)
    if found is NO_CONTENTION:
        return NO_CONTENTION, list(took)
    rest = [each for each in took if each.end_s is None or each.seconds <= 0]
    alone = zip(timed, _Crowd.of(timed).alone_s(found), strict=True)
    return found, [*(replace(each, seconds=seconds) for each, seconds in alone), *rest]


def _contention(timed: Sequence[Took], cores: float) -> Contention:
    if len(timed) < FEW:
        return NO_CONTENTION
    crowd = _Crowd.of(timed)
    kinds, met = [each.operation for each in timed], crowd.met()
    crowds = [log(count) for count in met]
    if _correlation(kinds, crowds, [each.seconds for each in timed]) * sqrt(len(timed)) < LEAST_CORRELATION:
        return NO_CONTENTION
    groups = [(kind, min(count, MOST_MET)) for kind, count in zip(kinds, met, strict=True)]

    def best(capacity: float) -> tuple[float, Contention]:
        found = [Contention(capacity, exponent) for exponent in EXPONENTS]
        spread, place = min((_spread(groups, crowd.alone_s(each)), place) for place, each in enumerate(found))
        return spread, found[place]

    spread, chosen = best(cores)
    lower = min((best(capacity) for capacity in CAPACITIES if capacity < cores), key=lambda each: each[0], default=None)
    return lower[1] if lower is not None and lower[0] < CLEARLY_LESS * spread else chosen


def _spread(groups: Sequence[tuple[str, int]], seconds: Sequence[float]) -> float:
    """How far the work of operations depends on how many they met: the variance between the groups of each kind."""
    logarithms: dict[tuple[str, int], list[float]] = defaultdict(list)
    for group, took_s in zip(groups, seconds, strict=True):
        logarithms[group].append(log(max(took_s, _SHORTEST_S)))
    by_kind: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for (kind, _), values in logarithms.items():
        by_kind[kind].append((len(values), fmean(values)))
    spread = 0.0
    for means in by_kind.values():
        count = sum(number for number, _ in means)
        middle = sum(number * mean for number, mean in means) / count
        spread += sum(number * (mean - middle) ** 2 for number, mean in means)
    return spread


def _end_s(took: Took) -> float:
    return took.end_s if took.end_s is not None else 0.0


class _Crowd:
    """The number of operations in progress, over time."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans = spans
        changes: dict[float, int] = defaultdict(int)
        for start_s, end_s in spans:
            changes[start_s] += 1
            changes[end_s] -= 1
        self._times = sorted(changes)
        self._place = {time_s: number for number, time_s in enumerate(self._times)}
        self._counts = list(accumulate(changes[time_s] for time_s in self._times))

    @staticmethod
    def of(timed: Sequence[Took]) -> _Crowd:
        """Of operations that all have a time."""
        return _Crowd([(_end_s(each) - each.seconds, _end_s(each)) for each in timed])

    def met(self) -> list[int]:
        """How many each has met, itself included: those in progress when it began, and those that began just after.

        Operations that are ordered together begin one after the other, and still meet. "Just after" is within the time
        that nearly all operations take, so that it does not depend on how long this one took.
        """
        starts, ends = sorted(start_s for start_s, _ in self._spans), sorted(end_s for _, end_s in self._spans)
        taken = sorted(end_s - start_s for start_s, end_s in self._spans)
        soon_s = taken[len(taken) // 20]
        return [bisect_right(starts, start_s + soon_s) - bisect_right(ends, start_s) for start_s, _ in self._spans]

    def alone_s(self, contention: Contention) -> list[float]:
        """The work that each has done, in the seconds that it would have taken alone."""
        pieces = zip(pairwise(self._times), self._counts, strict=False)
        work = [(end_s - start_s) * contention.speed(count) for (start_s, end_s), count in pieces]
        done = [0.0, *accumulate(work)]
        return [done[self._place[end_s]] - done[self._place[start_s]] for start_s, end_s in self._spans]


def _correlation(kinds: Sequence[str], met: Sequence[float], seconds: Sequence[float]) -> float:
    """The correlation of the logarithms of times with how many operations were met, within each kind."""
    by_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kind, crowd, took_s in zip(kinds, met, seconds, strict=True):
        by_kind[kind].append((crowd, log(max(took_s, _SHORTEST_S))))
    pairs = [pair for values in by_kind.values() for pair in _centred(values)]
    crowds, times = [crowd for crowd, _ in pairs], [took for _, took in pairs]
    scale = sqrt(_dot(crowds, crowds) * _dot(times, times))
    return _dot(crowds, times) / scale if scale > 0 else 0.0


def _centred(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    middles = [fmean(side) for side in zip(*pairs, strict=True)]
    return [(first - middles[0], second - middles[1]) for first, second in pairs]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
